"""Opens runs on static graphs, sampled or whole: graph, goal, loaders, model and learnable node embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.graph.columns import everything
from hpcgnn.graph.embeddings import EmbeddingStore, SparseEmbedding
from hpcgnn.graph.partition import WEIGHT, GraphPartition
from hpcgnn.graph.splits import SPLITS, TRAIN_SPLIT
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.same_model import share_model
from hpcgnn.loop.schema import Schema
from hpcgnn.loop.session import Session, prepare, split_metrics
from hpcgnn.loop.step_graphs import StepGraphs, records_steps
from hpcgnn.static.config import (
    DEVICE,
    SHARDED,
    WEIGHTED,
    GraphBaselineConfig,
    GraphSamplingConfig,
    StaticConfig,
    message_columns,
)
from hpcgnn.static.features import FEATURE
from hpcgnn.static.goals import NodeGoal, StaticGoal, make_goal
from hpcgnn.static.graph import StaticGraph, open_partition
from hpcgnn.static.inference import check_layers, infer, why_not_by_layers
from hpcgnn.static.loader import SeedLoader, Seeds, options_of
from hpcgnn.static.model.blocks import EDGE_FEATURE
from hpcgnn.static.model.convolutions import CONVOLUTIONS
from hpcgnn.static.model.models import GraphModel, GraphSizes, make_model
from hpcgnn.static.moments import moments
from hpcgnn.static.rows.label_propagation import NODE_BASELINES
from hpcgnn.static.rows.propagate import check_propagation, with_propagated
from hpcgnn.static.sampler_ranks import Samplers
from hpcgnn.static.sampling.draw import Draw
from hpcgnn.static.sampling.edges import check_columns
from hpcgnn.static.sampling.neighbors import check_drawn_by, check_weights, sampler_of
from hpcgnn.static.sampling.seeds import SeedBatches, SeedPool
from hpcgnn.static.sampling.times import describe_times, with_times
from hpcgnn.static.schema import EDGE_TYPES, adapt, make_schema, needs_of, values_by_task
from hpcgnn.static.tasks import join_loaders, make_joint_goal
from hpcgnn.static.whole import FullGraph, FullGraphPass, FullGraphTask, FullPlan, build_full_graph
from hpcgnn.task.goal import Collected


def open_session(
    config: StaticConfig, path: str, world: World, watchdog: Watchdog, samplers: Samplers | None = None,
    trained: Schema | None = None,
) -> Session:  # fmt: skip
    """Collective. Open the session of a run: over the whole graph in every step, or over mini-batches, which
    ``samplers`` may draw; then this rank and its peers keep edges only where they score by exact inference. trained:
    what the model that is to be loaded needs of a graph."""
    timers, plan_timers, dtype = prepare(config.train, world)
    channel, whole, exact = world.channel(by_machine=True), None, config.eval.scores_all
    partition = open_partition(
        config, path, world, channel, partial(_check, config, samplers is None),
        edges=samplers is None or exact or config.task.of_edges,  # no samplers with further tasks
    )  # fmt: skip
    columns = _describe_columns(config, partition)
    needs, edge_types = needs_of(config, partition), {"": 0}
    if trained is not None:
        with together(world, "compare the graph with the model's"):
            config = adapt(config, partition, trained)
        edge_types = {name: values.get(EDGE_TYPES, 0) for name, values in values_by_task(trained.values).items()}
    if config.sampling.time_column:
        partition = with_times(partition, config.sampling.time_column, world, channel)
    goal: StaticGoal
    if config.task.further:
        goal, partition = make_joint_goal(config, partition, world, channel, edge_types)
    else:
        goal, partition = make_goal(config, partition, world, channel, edge_types[""])
    if config.eval.train_split:
        goal.pools[TRAIN_SPLIT] = replace(goal.pools[SPLITS[0]], name=TRAIN_SPLIT)
    if config.eval.correct_and_smooth:
        assert isinstance(goal, NodeGoal)
        goal.correct_by_labels(config.eval, partition, world, channel)
    schema = trained or make_schema(config, partition, goal, needs)
    edge_widths = _edge_widths(config, partition)
    partition, tables = with_propagated(partition, config.features_of_steps, channel, dtype)
    if config.train.full_graph:
        exact, whole = True, build_full_graph(partition, channel, world.device, message_columns(config), dtype)
    if (whole is not None and not config.baseline.kind) or not (samplers is None or exact):
        partition = partition.degrees_only()
    graph = StaticGraph(
        path, world, tables, dtype, direction=config.sampling.direction, channel=channel, opened=partition,
        shares=not config.train.full_graph, loads_features=samplers is None or not config.comm.server_features,
    )  # fmt: skip
    if samplers is not None:
        samplers.meet()  # before any loader, which requests draws
    loaders: dict[str, Any]
    if whole is None or config.task.of_edges:
        by_task = {
            name: _make_loaders(config.of_task(name), graph, each, plan_timers, samplers)
            for name, each in goal.by_task.items()
        }
        loaders = by_task[""] if len(by_task) == 1 else join_loaders(config, by_task, trained is None)
    else:
        loaders = {name: WholeLoader(graph, whole, goal, pool) for name, pool in goal.pools.items()}
    model, memory = _build_model(config, graph, goal, edge_widths)
    task = _make_task(config, graph, goal, whole, (model, graph.rows, memory, timers))
    if getattr(loaders[SPLITS[0]], "is_padded", False):  # not where loaders pass over the whole graph
        task.use_graphs(lambda step: StepGraphs(step, timers, config.train.needs_graphs))
    return Session(
        config, world, watchdog, timers, plan_timers, dtype, graph, loaders, model, goal, memory, task,
        partial(_describe, columns, whole),
        world, "seeds", _exact_scores if exact else None, schema=schema, path=path,
    )  # fmt: skip


def _make_task(
    config: StaticConfig, graph: StaticGraph, goal: Any, whole: FullGraph | None, shared: tuple[Any, ...]
) -> Any:  # fmt: skip
    """Collective. Make what executes plans; shared: what GraphTask takes."""
    if whole is None:
        return goal.task(*shared)
    model, _, memory, timers = shared
    features, train = _all_features(graph, whole), config.train
    if config.model.by_query:
        features = [None] * len(features)
    passes = FullGraphPass(
        model, whole, features, memory, train.seed, graph.channel, timers, config.comm.overlap
    )  # fmt: skip
    if config.task.of_edges:
        return goal.whole_task(passes, graph, *shared)
    return FullGraphTask(passes, goal.sum, goal.head, timers)


def _check(config: StaticConfig, draws: bool, partition: GraphPartition) -> None:
    """Raises ValueError for what does not go together with the graph."""
    sampling = config.sampling
    _learned_types(config, partition)
    if config.features.hops:
        check_propagation(partition)
    if config.model.edge_weights:
        check_columns(partition, [WEIGHT], "model.edge_weights")
        check_weights(partition, "model.edge_weights", "leave model.edge_weights false")
    if config.model.edge_features:
        check_columns(partition, [EDGE_FEATURE], "model.edge_features")
    check_columns(partition, sampling.edge_columns)
    if config.train.full_graph:
        return
    sampler_of(sampling.class_path)
    sampling.check_relations([relation.name for relation in partition.relations])
    if draws and sampling.strategy == "weighted":
        check_drawn_by(partition, sampling.weight_column)


def _learned_types(config: StaticConfig, partition: GraphPartition) -> tuple[int, ...]:
    """Choose the node types with learnable rows: those named, by default those without features. Raises ValueError,
    also for rows of bases where a type has features."""
    if config.model.by_query:
        return ()
    bare = [kind for kind, features in enumerate(partition.features) if features is None]
    learned = tuple(sorted(set(bare) | {partition.type_of(name) for name in config.node_embedding.types}))
    named = [name for kind, name in enumerate(partition.types) if kind not in bare]
    if config.model.basis_rows and named:
        raise ValueError(f"model.basis_rows is for graphs without features, but {', '.join(named)} has some")
    return learned


def _make_loaders(
    config: StaticConfig, graph: StaticGraph, goal: StaticGoal, timers: Any, samplers: Samplers | None
) -> dict[str, SeedLoader]:
    """Collective. Make loaders by split, which plan with the same samplers."""
    train, options = config.train, options_of(config)
    learned: Collection[int] = _learned_types(config, graph.partition)
    if train.full_graph:  # seeds need the outputs of their nodes alone, whatever the type
        learned = range(len(graph.types))
        bare = GraphSamplingConfig(fanouts=[], topology=SHARDED, prefetch=config.sampling.prefetch)
        options |= {"sampling": bare, "node_columns": (), "with_edges": False}
    pool, roots, excluded, complete = goal.training
    seeds = Seeds(pool, roots, None if train.full_graph else excluded, complete)
    graph.tables.learn(learned)
    loader = SeedLoader(
        graph, seeds, batch_size=train.batch_size, shuffle=True, drop_last=train.drop_last, remote=samplers,
        timers=timers, pads=partial(_records_steps, config, graph), **options,
    )  # fmt: skip
    size = config.eval.batch_size or train.batch_size
    return {name: loader if name == SPLITS[0] else loader.beside(pool, size) for name, pool in goal.pools.items()}


def _records_steps(config: StaticConfig, graph: StaticGraph, draw: Draw) -> bool:
    """Collective. Whether steps are CUDA graphs. Raises DistributedError where they are asked for and something hinders
    them."""
    partition, model, sampling = graph.partition, config.model, config.sampling
    hindrances = {
        "neighbors are drawn on the host (see sampling.plan_on)": not draw.on_device,
        "several ranks fetch rows from one another": partition.book.size > 1,
        "the graph is heterogeneous": len(partition.types) > 1 or len(partition.relations) > 1,
        f"the shapes of model.kind {model.kind} depend on the relations in a step": CONVOLUTIONS[model.kind].relational,
        "CUDA graphs do not work with custom model classes": model.class_path,
        "CUDA graphs do not work with learnable node embeddings": _learned_types(config, partition),
        "features.storage is not device": graph.tables.storage != DEVICE,
        "features are stored narrow (--feature_dtype)": any(
            each is not None and each.encoding for each in partition.features
        ),
        "steps read columns of edges": sampling.edge_columns or model.edge_weights or model.edge_features,
        "training of several tasks takes turns": config.task.further,
        "the loss is over all nodes": config.task.over_all or config.train.full_graph,
        "task.loss_path may do anything": config.task.loss_path,
        "train.debug waits for the device": config.train.debug,
    }
    with together(graph.world, "prepare CUDA graphs"):
        return records_steps(config.train.cuda_graphs, graph.world.device, hindrances)


def _build_model(
    config: StaticConfig, graph: StaticGraph, goal: StaticGoal, edge_widths: tuple[int, ...]
) -> tuple[GraphModel, EmbeddingStore]:
    """Collective. Build the model, and learnable rows of the types that need them."""
    partition, device, train = graph.partition, graph.world.device, config.train
    learned, embedding, width = _learned_types(config, partition), config.node_embedding, config.model.row_width
    if config.model.basis_rows and not embedding.scale:  # as matrices [all nodes, hidden] start (Glorot and Bengio)
        embedding = replace(embedding, scale=math.sqrt(6 / (partition.book.num_nodes + config.model.hidden)))
    torch.manual_seed(train.seed % (1 << 63))  # right before the model is made: weights must start equal on all ranks
    with together(graph.world, "build the model"):
        tables = {
            kind: SparseEmbedding(
                partition.flat_row[partition.of_type(kind)], width, embedding, train.lr, train.seed, graph.dtype, device
            )
            for kind in learned
        }
        relations = tuple((relation.src_type, relation.dst_type) for relation in partition.relations)
        widths = tuple(input_width + width * (kind in learned) for kind, input_width in enumerate(graph.widths))
        names = tuple(files.split_relation(relation.name) for relation in partition.relations)
        predicted = tuple(sorted({kind for each in goal.by_task.values() for kind, _ in each.roots}))
        back = tuple(number for number, relation in enumerate(partition.relations) if relation.leads_back)
        sizes = GraphSizes(
            widths, relations, goal.num_outputs, edge_widths, tuple(partition.types), names, predicted, back
        )  # fmt: skip
        model: Any = make_model(config.model, sizes)
    if config.features.standardize:
        model.input.standardize([moments(graph, kind) for kind in range(len(graph.types))])
    with together(graph.world, "build the model"):
        model = goal.extend(model)
        if not (learned or config.baseline.kind):
            _check_weights(model, config, goal.num_outputs)
    if config.train.full_graph or config.eval.scores_all:
        check_layers(model, config)
    embeddings = EmbeddingStore(tables, partition.type_start)
    graph.tables.share_learned(embeddings)
    model = model.to(device=device, dtype=graph.dtype)
    share_model(model, graph.world, config.model.class_path)
    return model, embeddings


def _check_weights(model: torch.nn.Module, config: StaticConfig, num_outputs: int) -> None:
    """Raises ValueError for a model that can learn nothing."""
    if any(parameter.requires_grad for parameter in model.parameters()):
        return
    if config.model.class_path:
        raise ValueError(f"model.class_path {config.model.class_path} has no weights, so nothing can be learned")
    raise ValueError(
        f"model.kind {config.model.kind} has no weights: it multiplies features by a matrix only if they are not as "
        f"wide as its outputs ({num_outputs}); give nodes learnable embeddings (node_embedding.types), or choose "
        "another model.hidden or model.kind"
    )


def _edge_widths(config: StaticConfig, partition: GraphPartition) -> tuple[int, ...]:
    """Return the widths of the features of edges that the model reads, by relation."""
    if not config.model.edge_features:
        return ()
    columns = [edges.columns.get(EDGE_FEATURE) for edges in partition.edges]
    return tuple(0 if column is None else math.prod(column.shape[1:]) for column in columns)


class WholeLoader:
    """All seeds of a split as one step over the whole graph, at their owners, in order of place; none: no step."""

    def __init__(self, graph: StaticGraph, whole: FullGraph, goal: Any, pool: SeedPool):
        order, kind, device = np.argsort(pool.place), goal.node_type, graph.world.device
        columns = {name: column[order] for name, column in pool.columns.items()}
        sizes = np.array([pool.total] if pool.total else [], np.int64)
        indptr = np.array([0, len(order)])[: len(sizes) + 1]
        self.whole, self.batches = whole, SeedBatches(pool.name, columns, pool.place[order], indptr, sizes)
        first = int(graph.partition.book.of_type(kind).starts[graph.world.rank])
        row = torch.from_numpy(columns["id"] - first + int(graph.partition.type_start[kind])).to(device)
        self._place, self._label = whole.place[row], torch.from_numpy(columns["label"]).to(device)

    def start_epoch(self, epoch: int) -> None:
        """Do nothing: every epoch has the same seeds."""

    def plans(self, epoch: int, start: int = 0) -> Prefetcher[FullPlan]:
        """Make the plan of the only step."""
        size = int(self.batches.sizes.sum())
        return Prefetcher(
            lambda step: FullPlan(step, epoch, size, self._place, self._label), start, self.batches.num_steps, 0
        )

    def channels(self) -> list[Channel]:
        """Return no channels: nothing is planned."""
        return []


def _all_features(graph: StaticGraph, whole: FullGraph) -> list[torch.Tensor | None]:
    """Collective. Bring by type the features of [own nodes | remote nodes]; the graph's tables become views of them."""
    features: list[Any] = []
    for rows, route in zip(graph.rows, whole.routes, strict=True):
        features.append(None)
        if FEATURE in rows.tables:
            own = everything(rows.tables[FEATURE])
            features[-1] = torch.cat([own, rows.pull_exact(route, FEATURE)])
            rows.tables[FEATURE] = features[-1][: len(own)]
    return features


class AskedToLeave(Exception):
    """Raised on all ranks between two chunks of scoring a split: the run is to leave."""


@torch.no_grad()
def _exact_scores(session: Session, split: str, stop: Callable[[], bool]) -> Collected | None:
    """Collective. Score a split from the outputs of all nodes; None when ``stop``, asked after every chunk of
    inference and every step of scoring, says so."""
    steps = count(1)

    def report_and_ask() -> None:
        session.watchdog.at(split, next(steps))
        if stop():
            raise AskedToLeave

    session.watchdog.at(split)
    batches, messages = session.batches[split], session.goal.test_messages
    if messages is not None and split == "test":
        session = replace(session, graph=session.graph.over(messages, split))
    try:
        outputs = infer(session, report_and_ask)
        return session.goal.exact_scores(outputs, batches, session.graph, report_and_ask)
    except AskedToLeave:
        return None


def baseline_metrics(
    session: Session, config: GraphBaselineConfig, at: Callable[[str, int], None] | None = None
) -> dict[str, float]:  # fmt: skip
    """Collective. Compute the metrics of validation and test by a baseline, named as a model's; of nodes also
    ``unreached``, the number of nodes of the split that no label reaches. ``at(split, step)``, in place of the
    watchdog's, is called after every step. Raises DistributedError where it cannot be made."""
    at, goal, graph = at or session.watchdog.at, session.goal, session.graph
    at("baseline", 0)
    values: dict[str, float] = {}
    unreached: dict[str, int] = {}
    if config.kind in NODE_BASELINES:
        scores, unreached = goal.label_scores(config, graph)
        score = partial(goal.exact_scores, scores)
    else:
        score = partial(goal.rank_by_baselines, goal.make_baselines(config, graph))
    for split in SPLITS[1:]:
        steps = count(1)
        collected = score(session.batches[split], graph, lambda split=split, steps=steps: at(split, next(steps)))
        metrics = split_metrics(session, split, collected)
        metrics |= {"unreached": unreached[split]} if unreached else {}
        values |= {f"{split}_{name}": value for name, value in metrics.items()}
    return values


def _describe_columns(config: StaticConfig, partition: GraphPartition) -> list[str]:
    """Say which columns of the edges, and features of nodes, no model reads, and what would; a class of the user's own
    may read any."""
    has = [(*edges.columns, *unread) for edges, unread in zip(partition.edges, partition.unread, strict=True)]
    unused: dict[str, list[str]] = {}
    for relation, columns, unread in zip(partition.relations, has, partition.unread, strict=True):
        for name in columns:
            weighs = name == WEIGHT and not (config.model.class_path or config.model.edge_weights)
            if weighs or (name in unread and name != "split"):
                unused.setdefault(name, []).append(relation.name)
    lines = []
    if not config.model.class_path and (names := ", ".join(unused.pop(WEIGHT, []))):
        draws_by = config.sampling.weight_column if config.sampling.strategy == WEIGHTED else ""
        use = "neighbors are drawn by it, but" if draws_by == WEIGHT else "not used:"
        lines.append(f"column weight of {names}: {use} messages are not multiplied by it (see model.edge_weights)")
    if unused:
        names = "; ".join(f"{name} of {', '.join(relations)}" for name, relations in unused.items())
        readers = "model.edge_features reads feat, sampling.edge_columns any, for a custom model"
        lines.append(f"edge columns not read: {names} ({readers})")
    stored = [name for name, rows in zip(partition.types, partition.features, strict=True) if rows is not None]
    if config.model.by_query and stored:
        lines.append(f"features of {', '.join(stored)}: not used: model.kind {config.model.kind} has states of queries")
    return lines


def _describe(columns: list[str], whole: FullGraph | None, session: Session) -> list[str]:
    """Collective."""
    world, book, config, loader = session.world, session.partition.book, session.config, session.loaders["train"]
    lacking, timed = why_not_by_layers(session.model, config), config.sampling.time_column
    start = "whole graph in every step"
    if whole is None:
        start = f"plans ahead: {loader.prefetch}, in flight: {len(loader.samplers)}"
    relations, types = session.partition.relations, session.partition.types
    learned = int(world.total(sum(table.weight.numel() for table in session.memory.tables.values())))
    return [
        f"{world.size} ranks x {world.threads} threads on {world.device.type}, {start}",
        *([loader.remote.describe()] if whole is None and loader.remote else []),
        f"{book.num_nodes} nodes of {len(types)} types, {sum(relation.num_edges for relation in relations)} edges of "
        f"{len(relations)} relations in {book.offsets.shape[1] - 1} parts",
        *columns,
        *(["training steps are CUDA graphs"] if session.task.has_graphs else []),
        *([f"neighbors by time ({timed}): {describe_times(session.partition, timed)}"] if timed else []),
        *([f"hpcgnn predict samples neighbors for this model: {lacking}"] if lacking else []),
        *_describe_tasks(session),
        f"{config.train.precision}; {session.batches['train'].num_steps} steps an epoch",
        *([f"{learned} parameters of learnable node embeddings, at the nodes' owners"] if learned else []),
        *(_describe_samples(session) if whole is None else _describe_remote_nodes(world, whole)),
    ]


def _describe_tasks(session: Session) -> list[str]:
    lines = []
    for name, goal in session.goal.by_task.items():
        seeds = ", ".join(f"{split} {goal.pools[split].total}" for split in SPLITS)
        begin = f"task {name}, weight {session.config.task.further[name].weight:g}: " if name else ""
        lines.append(f"{begin}{goal.describe()}: {seeds}")
    return lines


def _describe_remote_nodes(world: World, whole: FullGraph) -> list[str]:
    """Collective."""
    outer, remote_nodes = (int(world.total(count)) for count in (whole.outer.num_nodes, sum(whole.num_remote)))
    return [f"{outer} nodes have remote neighbors; {remote_nodes} remote nodes on all ranks together"]


def _describe_samples(session: Session) -> list[str]:
    """Collective. Say where edges and rows of nodes lie."""
    world, tables, replica, lines = session.world, session.graph.tables, session.loaders["train"].replica, []
    if world.size > 1 and replica is None:
        lines.append("topology sharded: neighbors are requested from their owners")
    elif world.size > 1:
        lines.append(f"topology replicated: {replica.num_bytes} bytes on every machine")
    if tables.wants_copies:
        copies, predicted = tables.num_copies(), tables.predicted_hits
        lines.append(f"feature cache: {copies} remote rows on all ranks together, predicted hit rate {predicted:.3f}")
    held = max(world.allgather(tables.held_bytes())) / (1 << 20)
    where = {
        "device": ", read in place by all ranks of a machine" if tables.is_shared else "",
        "pinned": ", features in pinned memory of the host" + (" that the GPUs of a machine share" * tables.is_shared),
        "file": ", features in the part files",
    }[tables.storage]
    lines.append(f"node rows and feature cache: {held:.1f} MiB at most on a rank{where}")
    if tables.lacks_room:
        lines.append("too little shared memory on a machine (free memory, /dev/shm): its ranks send rows to each other")
    return lines
