"""Opens runs on temporal graphs: the rank's graph, goal, model, node memory, and loaders with their negatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.board import make_board
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph.splits import SPLITS, TRAIN_SPLIT
from hpcgnn.loop.same_model import share_model
from hpcgnn.loop.schema import Schema
from hpcgnn.loop.session import Session, do_nothing, prepare
from hpcgnn.loop.step_graphs import StepGraphs, records_steps
from hpcgnn.nn.decoders import DECODERS
from hpcgnn.nn.own_class import check_parts, named_errors
from hpcgnn.temporal.batches import Batches, last_times, shown
from hpcgnn.temporal.config import MemoryConfig, TemporalConfig
from hpcgnn.temporal.eval_negatives import EVAL_NEGATIVES, NegativeSource, check_files
from hpcgnn.temporal.goals import NodePropertyGoal, TemporalGoal, make_goal
from hpcgnn.temporal.graph import FEATURE, LABEL, LABELS_OF_NODES, SPLIT
from hpcgnn.temporal.loader import Planning, TemporalGraph, TemporalLoader
from hpcgnn.temporal.mail import Mailing
from hpcgnn.temporal.memory import HotNodes, Layout, NodeMemory, hottest
from hpcgnn.temporal.model.clocks import Clocks, num_clocks, time_scales
from hpcgnn.temporal.model.forecaster import FORECASTERS
from hpcgnn.temporal.model.model import TemporalModel, TemporalSizes, resolve_model
from hpcgnn.temporal.model.readout import READOUTS
from hpcgnn.temporal.model.walks import draw_projections
from hpcgnn.temporal.negatives import AnyNegatives, negative_pool, no_negatives
from hpcgnn.temporal.node_classes import INPUT_COLUMNS, make_node_loaders, with_label_input
from hpcgnn.temporal.properties import ForecastLoader, PropertyLoader
from hpcgnn.temporal.sampler import TemporalSampler, choose_sampler
from hpcgnn.temporal.schema import CLASSES, CLOCK_SCALES, EDGE_TYPES, OUTPUTS, TIME_SCALE, adapt, needs_of
from hpcgnn.temporal.sides import Needs, Placement

# What would read a column of events that a run has no use for.
READERS = {
    FEATURE: "models with node memory or neighbors read it", LABEL: "task.kind node, edge and edge_regression read it",
    SPLIT: "task.kind node_class splits nodes",
}  # fmt: skip
READERS_OF_NODES = {name: "task.kind node_class reads it" for name in (LABEL, SPLIT)}


def open_session(
    config: TemporalConfig, path: str, world: World, watchdog: Watchdog, trained: Schema | None = None
) -> Session:
    """Collective. Open the session of a run.

    ``world``: the ranks that hold the graph and its node memory between them; with ``train.parallel_epochs`` a group of
    the job's, which trains on some of the epochs of every round.
    """
    timers, plan_timers, dtype = prepare(config.train, world)
    of_nodes = LABELS_OF_NODES if config.task.of_nodes else ()
    # With task.kind node_class all events are for training: node memory moves through all of them in every split.
    data = replace(config.data, val_ratio=0.0, test_ratio=0.0) if of_nodes else config.data
    of_labels = config.task.relation if config.task.of_events else None
    graph = TemporalGraph(path, world, data, config.train.seed, _event_columns(config), of_nodes, of_labels)
    needs = needs_of(graph.partition)
    if trained is not None and not config.baseline.kind:  # a baseline reads no features, and has no model to fit
        with together(world, "compare the graph with the model's"):
            config = adapt(config, graph.partition, trained)
    with together(world, "find the relations"):
        config = replace(config, sampling=graph.sampling(config.sampling))
    goal = make_goal(config, graph)
    if isinstance(goal, NodePropertyGoal) and config.model.forecaster:
        timing = watchdog, timers, plan_timers, dtype
        return _open_forecast(config, path, graph, goal, timing, trained or Schema(needs, {CLASSES: []}))
    scale = _time_scale(graph) if trained is None else trained.values[TIME_SCALE]
    values: dict[str, Any] = {TIME_SCALE: scale, OUTPUTS: goal.num_outputs, CLASSES: goal.class_names(graph.partition)}
    if graph.partition.edge_types:
        values[EDGE_TYPES] = list(graph.partition.edge_types)
    if DECODERS[config.task.decoder].reads_clocks:
        counted = partial(time_scales, graph.partition, graph.splits, world, graph.channel)
        values[CLOCK_SCALES] = counted() if trained is None else trained.values[CLOCK_SCALES]
    schema = trained or Schema(needs, values)
    if config.task.label_input and goal.node_classes is not None:
        graph.partition = with_label_input(graph.partition, goal.node_classes)
    model = _build_model(config, graph, goal, dtype, values)
    memory, hot = _make_memory(config, graph, model, dtype)
    is_replicated = memory.layout is not None and hot is None  # every rank keeps the memory of all nodes
    features = graph.features(dtype, memory.layout, is_replicated)
    ahead, own = world.plans_ahead(config.sampling.prefetch), None
    if is_replicated:
        own = world.own_channel()
    elif model.has_memory:
        graph.board = make_board(world)
    # Planning has a channel of its own: a background thread uses it while steps move rows over the graph's.
    channels = world.channel(polite=ahead > 0, by_machine=True), graph.channel
    threads = 1 if ahead else world.threads
    place = Placement(*channels, world.device, dtype, own, hot, threads, graph.board, features, world.room)
    loaders = _make_loaders(config, graph, goal, model, place, (timers, plan_timers), values.get(CLOCK_SCALES))
    task = goal.task(
        loaders["train"].batches, model, memory, config.memory.update_at, config.train.seed, timers, graph.channel,
        config.task.freeze, config.memory.staleness,
    )  # fmt: skip
    if getattr(loaders["train"], "is_padded", False):  # not where steps are not of events alone
        task.use_graphs(lambda step: StepGraphs(step, timers, config.train.needs_graphs))
    check = partial(_check_evaluation, config, loaders, world) if goal.draws_negatives else do_nothing
    return Session(
        config, world, watchdog, timers, plan_timers, dtype, graph, loaders, model, goal, memory, task,
        partial(_describe, hot), world, roots=_roots(config), forgets=config.task.of_nodes,
        check_training=check, more_metrics=_met_share, schema=schema, path=path,
        rebuild=_rebuild if model.has_memory and not of_nodes else None,
    )  # fmt: skip


def _open_forecast(
    config: TemporalConfig, path: str, graph: TemporalGraph, goal: NodePropertyGoal, timing: tuple, schema: Schema
) -> Session:  # fmt: skip
    """Collective. Open the session of a model of earlier labels. timing: watchdog, timers of steps and of plans, and
    the dtype of the run's numbers."""
    world, (watchdog, timers, plan_timers, dtype), make = graph.world, timing, FORECASTERS[config.model.forecaster].make
    assert make is not None
    torch.manual_seed(config.train.seed % (1 << 63))
    model = make(goal.num_outputs).to(device=world.device, dtype=dtype)
    share_model(model, world, "")
    memory = NodeMemory(graph.partition.num_nodes, goal.num_outputs, 0, dtype, world.device)
    size, eval_size = config.train.batch_size, config.eval.batch_size or config.train.batch_size
    train = ForecastLoader(graph, goal.labels, "train", size, dtype)
    loaders = {"train": train} | _evaluation_loaders(config, train.of_split("val", eval_size), eval_size)
    return Session(
        config, world, watchdog, timers, plan_timers, dtype, graph, loaders, model, goal, memory,
        goal.forecast_task(model, memory, timers), partial(_describe, None), world, roots="labels", schema=schema,
        path=path, rebuild=_rebuild,
    )  # fmt: skip


def _roots(config: TemporalConfig) -> str:
    """Name the elements of training batches."""
    return "nodes" if config.task.of_nodes and config.task.train_at == "label" else "events"


def _rebuild(session: Session) -> None:
    """Collective. Form node memory from the events of training, by the current weights."""
    session.memory.reset()
    loader = session.loaders["val"].of_split("train", session.config.train.batch_size)
    with loader.plans(0, scored=False) as plans:
        for plan in plans:
            session.watchdog.at("replay the events of training", plan.step)
            session.task.evaluate(plan)
    session.memory.settle()


def _event_columns(config: TemporalConfig) -> list[str]:
    """List the columns of events that the run has a use for, besides ends and times."""
    task, model = config.task, config.model
    reads_features = not model.forecaster and (
        (config.memory.has_memory and not config.memory.has_walks) or model.num_hops > 0 or task.kind.startswith("edge")
    )
    needs = {
        FEATURE: not config.baseline.kind and (reads_features or bool(model.class_path)),
        LABEL: task.of_events, SPLIT: not task.of_nodes,
    }  # fmt: skip
    return [name for name, is_needed in needs.items() if is_needed]


def _build_model(
    config: TemporalConfig, graph: TemporalGraph, goal: TemporalGoal, dtype: torch.dtype, values: dict[str, Any]
) -> TemporalModel:
    """Collective. values: what training counted in the graph, as in the schema."""
    partition, sampling = graph.partition, config.sampling
    torch.manual_seed(config.train.seed % (1 << 63))
    added = goal.num_outputs - INPUT_COLUMNS if config.task.label_input else 0
    sizes = TemporalSizes(
        partition.node_width + added, partition.edge_width, sampling.fanout(0), sampling.num_windows,
        values[TIME_SCALE], config.task.decoder, config.task.temperature, len(partition.edge_types),
        num_clocks(len(values.get(CLOCK_SCALES, ()))),
    )  # fmt: skip
    with together(graph.world, "build the model"):
        model_class = resolve_model(config.model.class_path)
        with named_errors(config.model.class_path):
            model: Any = model_class(config.model, config.memory, sizes)
        if config.memory.staleness and not model.has_memory:
            raise ValueError(f"{type(model).__name__} has no node memory: leave memory.staleness 0")
        if config.model.class_path:
            check_parts(model, config.model.class_path)
    model = goal.extend(model).to(device=graph.world.device, dtype=dtype)
    share_model(model, graph.world, config.model.class_path)
    return model


def _time_scale(graph: TemporalGraph) -> float:
    """Collective. Compute the root mean square of the times between consecutive events of a node, in training."""
    history, end, world = graph.splits.history, int(graph.splits.bounds[1]), graph.world
    follows = history.event[1:] < end
    first = history.indptr[(history.indptr > 0) & (history.indptr < len(history.event))]
    follows[first - 1] = False
    gaps = np.diff(history.time)[follows].astype(np.float64)
    squares = world.total(float(np.square(gaps).sum()))
    return math.sqrt(squares / max(1, world.total(len(gaps))))


def _make_memory(
    config: TemporalConfig, graph: TemporalGraph, model: TemporalModel, dtype: torch.dtype
) -> tuple[NodeMemory, HotNodes | None]:
    """Collective. Make the memory of this rank's nodes, of these and copies of the hot ones, or of all nodes by global
    id; and say which are hot."""
    partition, world, settings = graph.partition, graph.world, config.memory
    book, ids, hot, layout = partition.book, partition.book.local_to_global(world.rank), None, None
    mib = book.num_nodes * (model.state_width + model.mail_width) * dtype.itemsize / (1 << 20)
    if model.has_memory and settings.replicates(mib):
        layout = Layout(book.num_nodes, torch.from_numpy(ids).to(world.device), 0)
    elif model.has_memory and settings.hot_ratio and world.size > 1:
        hot = hottest(settings.hot_ratio, graph.splits.degree(), partition, world, graph.channel)
        layout = None if hot is None else hot.layout(ids, world.device)
    num_rows = partition.num_nodes if layout is None else layout.num_rows
    widths, slots = (model.state_width, model.mail_width), model.mailbox_slots
    row_bytes = (widths[0] + slots * widths[1]) * dtype.itemsize + (2 + slots) * 8
    world.room.note("node memory", num_rows * row_bytes)
    with together(world, "make the node memory"):
        memory = NodeMemory(num_rows, *widths, dtype, world.device, slots, layout)
    if getattr(model, "walks", None) is not None:
        memory.fix(draw_projections(partition.flat_row, settings.dim, config.train.seed), graph.channel)
    return memory, hot


def _make_needs(
    graph: TemporalGraph, settings: MemoryConfig, model: TemporalModel, channel: Channel, scales: list[float] | None
) -> tuple[Needs, Needs]:
    """Collective. List the needs of the model in training and in evaluation, which see other events. scales: of the
    clocks of pairs; None where the decoder reads none."""
    mailing, partition = None, graph.partition
    if model.has_memory:
        mailing = Mailing(
            settings.mailbox_slots, settings.deliver_to == "neighbors", settings.aggregator == "mean",
            model.config.message_from == "memory", getattr(model, "walks", None) is not None,
        )  # fmt: skip
    needs = Needs(model.num_hops, mailing, model.needs_nearby)
    if scales is None:
        return needs, needs
    evaluates = replace(needs, clocks=Clocks(partition, channel, scales))
    if not graph.world.total(int(graph.splits.hidden.sum())):
        return evaluates, evaluates
    events = shown(partition.events, graph.splits, partition, channel)
    return replace(needs, clocks=Clocks(partition, channel, scales, events)), evaluates


def _make_loaders(
    config: TemporalConfig, graph: TemporalGraph, goal: TemporalGoal, model: TemporalModel, place: Placement,
    timers: tuple[Timers, Timers], clock_scales: list[float] | None,
) -> dict[str, Any]:  # fmt: skip
    """Collective. Make loaders by split: training has a sampler of its own, validation and test share one.
    clock_scales: of the clocks of pairs, None where the decoder reads none."""
    world, partition, channel = graph.world, graph.partition, place.plan_channel
    in_training, needs = _make_needs(graph, config.memory, model, channel, clock_scales)
    # Questions of nodes are no events of the graph, and a device has nothing but those.
    is_asked = config.task.has_properties or config.task.of_nodes
    sampling = replace(config.sampling, plan_on="host") if is_asked else config.sampling
    seed = config.train.seed
    make = choose_sampler(partition, sampling, needs, place)
    with together(world, "prepare CUDA graphs"):
        padded = records_steps(config.train.cuda_graphs, world.device, _graph_hindrances(config, make))
    trains = make(partition, graph.history(True, sampling), sampling, in_training, seed, place, padded=padded)
    evaluates = make(
        partition, graph.history(False, sampling), sampling, needs, seed, place, evaluation=True,
        in_batch=config.eval.in_batch_neighbors,
    )  # fmt: skip
    epochs = range(world.group, config.train.parallel_epochs, world.num_groups)
    draws = goal.draws_negatives
    fixed: Callable[[Batches], AnyNegatives] = no_negatives
    if draws:
        kind, task = EVAL_NEGATIVES[config.eval.negative_kind], config.task
        pool = negative_pool(task.negative_pool, partition.events.dst, partition, world, channel)
        source = NegativeSource(
            partition, graph.splits, pool, world, channel, config.train.seed, task.negatives, config.eval.negatives_file
        )
        if kind.check:
            kind.check(source)
        fixed = lambda batches: kind.make(batches, source)  # noqa: E731
    training = Planning(trains, channel, None if draws else fixed, epochs, 0, *timers, config.task.negative_kind)
    evaluation = Planning(evaluates, channel, fixed, range(1), config.eval.negatives_per_pass, *timers)
    size = config.train.batch_size
    eval_size = config.eval.batch_size or size
    if isinstance(goal, NodePropertyGoal):
        ahead = world.plans_ahead(sampling.prefetch)
        learned = PropertyLoader(graph, goal.labels, "train", size, training, ahead)
        val = PropertyLoader(graph, goal.labels, "val", eval_size, evaluation, ahead)
        return {"train": learned} | _evaluation_loaders(config, val, eval_size)
    load = partial(
        TemporalLoader, graph, sampling=config.sampling, negatives=config.task.negatives,
        negative_pool=config.task.negative_pool,
    )  # fmt: skip
    train = load("train", size, drop_last=config.train.drop_last, planning=training)
    if goal.node_classes is not None:
        walk = load("train", eval_size, planning=evaluation)
        pairs = (train, training), (walk, evaluation)
        return make_node_loaders(config, graph, goal.node_classes, model.has_memory, *pairs)
    return {"train": train} | _evaluation_loaders(config, load("val", eval_size, planning=evaluation), eval_size)


def _evaluation_loaders(config: TemporalConfig, val: Any, batch_size: int) -> dict[str, Any]:
    """Collective. Make the loaders of all scored splits beside the loader of validation."""
    loaders = {"val": val, "test": val.of_split("test", batch_size)}
    return loaders | ({TRAIN_SPLIT: val.of_split("train", batch_size)} if config.eval.train_split else {})


def _check_evaluation(config: TemporalConfig, loaders: dict[str, TemporalLoader], world: World) -> None:
    """Collective. Raise DistributedError for negatives that validation or the test could not have: files that are
    missing, which are read later, and kinds of which there is none."""
    if EVAL_NEGATIVES[config.eval.negative_kind].reads_file:
        check_files(config.eval.negatives_file, world)
    else:
        for split in SPLITS[1:]:
            loaders[split].negatives(0)


def _met_share(session: Session, split: str) -> dict[str, float]:
    """Collective. Report the share of historical or inductive negatives that are pairs that met, where a split has such
    negatives."""
    kind = session.config.eval.negative_kind
    if not session.goal.draws_negatives or not EVAL_NEGATIVES[kind].met:
        return {}
    return {f"{kind}_share": session.loaders[split].negatives(0).met_share}


def _graph_hindrances(config: TemporalConfig, sampler: Callable) -> dict[str, Any]:
    """List what hinders that training steps are CUDA graphs, and whether it does here."""
    task, model = config.task, config.model
    return {
        "plans are made on the host (see sampling.plan_on)": sampler is TemporalSampler,
        "CUDA graphs do not work with custom model classes": model.class_path,
        "CUDA graphs do not work with late writes of node memory (memory.staleness)": config.memory.staleness,
        f"model.readout {model.readout} computes pairs in blocks": READOUTS[model.readout].of_pairs,
        "task.loss_path may do anything": task.loss_path,
        f"steps of task.kind {task.kind} are not of events alone": task.of_nodes or task.has_properties,
        "train.debug waits for the device": config.train.debug,
    }


def _list_unread(names: tuple[str, ...], readers: dict[str, str]) -> str:
    """List columns, each with what would read it."""
    listed = [f"{name} ({readers[name]})" for name in names if name in readers]
    others = ", ".join(name for name in names if name not in readers)
    return "; ".join([*listed, *([f"{others} (features are read from feat alone)"] if others else [])])


def _describe(hot: HotNodes | None, session: Session) -> list[str]:
    """Collective."""
    world, partition, batches, config = session.world, session.partition, session.batches, session.config
    book, count = partition.book, config.train.parallel_epochs
    totals = ", ".join(f"{name} {int(split.sizes.sum())}" for name, split in batches.items())
    lines = [
        f"{world.job.size} ranks x {world.threads} threads on {world.device.type}, plans ahead: "
        f"{session.loaders['train'].prefetch}",
        f"{book.num_nodes} nodes, {partition.num_events} events in {book.offsets.shape[1] - 1} parts; {totals}",
        f"{config.train.precision}; {batches['train'].num_steps} steps an epoch",
    ]
    if config.sampling.batch_by == "span" and not config.task.of_nodes:
        windows = len(np.unique(last_times(batches["train"], world) // config.sampling.batch_span))
        lines.append(
            f"batches of {config.sampling.batch_span} units of time: {windows} windows with training events, of which "
            f"those of more than {config.train.batch_size} are cut"
        )
    for kind, names in (("events", partition.unread), ("nodes", partition.unread_of_nodes)):
        if names:
            readers = READERS if kind == "events" else READERS_OF_NODES
            lines.append(f"columns of {kind} that are not read: {_list_unread(names, readers)}")
    if partition.edge_types:
        lines.append(f"{len(partition.edge_types)} edge types: {', '.join(partition.edge_types)}")
    if count > 1:
        own = len(range(world.group, count, world.num_groups))
        lines.append(f"{count} epochs at once, {own} by each of {world.num_groups} groups of {world.size} ranks")
    if session.task.has_graphs:
        lines.append("training steps are CUDA graphs")
    if hot:
        lines.append(f"node memory of {len(hot.ids)} hot nodes copied to every rank")
    shares = {split: share for split in SPLITS[1:] for share in _met_share(session, split).values()}
    if shares:
        texts = ", ".join(f"{share:.1%} of {split}" for split, share in shares.items())
        lines.append(
            f"{config.eval.negative_kind} negatives: {texts} are pairs with earlier events, the others are random"
        )
    return [*lines, *session.goal.describe_events(batches)]
