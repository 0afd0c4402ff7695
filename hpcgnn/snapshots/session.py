"""Opens runs on snapshots: the rank's graph, goal, model, and loaders that share their plans' neighborhoods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.relay import Relay
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph.embeddings import EmbeddingConfig, SparseEmbedding
from hpcgnn.graph.splits import SPLITS, TRAIN_SPLIT
from hpcgnn.loop.same_model import share_model
from hpcgnn.loop.schema import Schema
from hpcgnn.loop.session import Session, prepare
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.goals import GRAPH
from hpcgnn.snapshots.graph import DEGREE, TYPE, WEIGHT
from hpcgnn.snapshots.link_goal import GOALS
from hpcgnn.snapshots.loader import SnapshotLoader, SnapshotSequence
from hpcgnn.snapshots.model import make_model
from hpcgnn.snapshots.model.frame import SequenceModel, SequenceSizes
from hpcgnn.snapshots.plan import SnapshotInputs, make_batches
from hpcgnn.snapshots.schema import adapt, make_schema, needs_of
from hpcgnn.snapshots.step import SequenceRows, SnapshotTask
from hpcgnn.task.config import LINK
from hpcgnn.task.moments import Standard


def open_session(
    config: SnapshotConfig, path: str, world: World, watchdog: Watchdog, trained: Schema | None = None
) -> Session:
    """Collective. Open the session of a run; ``world``: the ranks that hold the graph, with ``comm.time_groups`` a
    group of the job's, which predicts from some snapshots of every step."""
    sampling, train = config.sampling, config.train
    timers, plan_timers, dtype = prepare(train, world)
    graph = SnapshotSequence(
        path, world, config.data.check_hash, config.task.target == DEGREE, config.data.stage_to,
        {config.task.target, *[WEIGHT] * config.model.edge_weights, *[TYPE] * (config.task.kind == LINK)},
    )  # fmt: skip
    partition, channel = graph.partition, world.channel(polite=world.plans_ahead(sampling.prefetch) > 0)
    with together(world, "open the partition set"):
        config = config if trained is None else adapt(config, partition, trained)
        inputs = SnapshotInputs(config.inputs, partition, config.task.target, dtype, world.device)
        needs = needs_of(config, partition, inputs.width)
        if trained is not None:
            trained.refuse(Schema(needs))
    with together(world, "read the task"):
        make_goal: Any = GOALS[config.task.kind].make
        goal = make_goal(config, partition, world, channel, graph.channel)
    with together(world, "split the snapshots"):
        first = inputs.first + max(0, sampling.window_size - 1)
        splits = goal.splits(config.data, first, partition.splits, config.task.horizon)
    schema = trained or make_schema(config, partition, goal, needs)
    model, memory = _build_model(config, graph, goal, inputs, splits["train"], dtype)
    loader = SnapshotLoader(
        graph, "train", splits["train"], train.batch_size, goal.want, goal.roots, sampling=sampling,
        edge_weights=config.model.edge_weights, with_out=model.with_out,
        edge_types=max(1, goal.num_edge_types) if model.typed_edges else 0, drop_last=train.drop_last,
        seed=train.seed, dtype=dtype, channel=channel, timers=plan_timers,
    )  # fmt: skip
    if config.model.dropout > 0:
        loader.check_keys("model.dropout", 0)
    loaders = {"train": loader} | {name: loader.beside(name, splits[name], train.batch_size) for name in SPLITS[1:]}
    if config.eval.train_split:
        loaders[TRAIN_SPLIT] = loader.beside(TRAIN_SPLIT, splits[SPLITS[0]], train.batch_size)
    task = SnapshotTask(
        model, goal, memory, cache(partial(inputs.at, channel=graph.channel)), graph.channel, timers,
        sampling=sampling, seed=train.seed, relay=Relay(world) if world.num_groups > 1 else None,
        overlap=config.comm.overlap,
    )  # fmt: skip
    carries = not sampling.window_size and bool(model.node_state or model.shared_state())
    renew = _renew if carries and not goal.restarts else None
    return Session(
        config, world, watchdog, timers, plan_timers, dtype, graph, loaders, model, goal, memory, task, _describe,
        world.job, "predictions", forgets=goal.restarts, renew=renew, schema=schema, path=path,
        rebuild=None if renew is None else lambda session: renew(session, lambda: False),
    )  # fmt: skip


def follow(session: Session, numbers: range) -> Iterator[tuple[int, torch.Tensor]]:
    """Collective. Yield snapshots that follow each other and the model's outputs [n, C] there; a state that is carried
    on is taken from before the first and left after the last."""
    loader = session.loaders["train"]
    batches = make_batches("forecast", numbers, session.config.train.batch_size, np.zeros(numbers.stop, np.int64))
    for step in range(batches.num_steps):
        session.watchdog.at("follow snapshots", step)
        plan = loader.planner.forecast(batches, step)
        yield from zip(plan.targets, session.task.outputs(plan), strict=True)


def _renew(session: Session, stop: Callable[[], bool]) -> bool:
    """Collective. Form the state after the snapshots of training by the weights of now: what training carries on was
    formed by older weights, and maybe by fewer neighbors. False where ``stop`` says so, asked after every step."""
    session.memory.reset()
    train = session.loaders["train"].snapshots
    size = session.config.train.batch_size
    for first in range(train.start, train.stop, size):
        for _ in follow(session, range(first, min(first + size, train.stop))):
            pass
        if stop():
            return False
    return True


def _build_model(
    config: SnapshotConfig, graph: SnapshotSequence, goal: Any, inputs: SnapshotInputs, trained: range,
    dtype: torch.dtype,
) -> tuple[SequenceModel, SequenceRows]:  # fmt: skip
    """Collective. Build the model, its state, and learnable inputs beside the known ones. trained: the snapshots that
    training predicts from."""
    world, partition, train, extra = graph.world, graph.partition, config.train, config.node_embedding.dim
    width = inputs.width
    if extra < 0:
        extra = 0 if width else config.model.hidden
    # The same weights on all ranks, which draw them in one order: those of the model, then those that the goal adds.
    torch.manual_seed(train.seed % (1 << 63))
    with together(world, "build the model"):
        if width + extra == 0:
            raise ValueError("nodes have no inputs: set inputs.degrees, inputs.lags or node_embedding.dim")
        sizes = SequenceSizes(width + extra, goal.num_outputs, config.sampling.window_size, extra, goal.num_edge_types)
        model = make_model(config.model, sizes)
        if model.weighs_edges and config.model.edge_weights and WEIGHT in partition.edge_columns:
            raise ValueError(f"{config.model_name} computes its edge weights: set model.edge_weights false")
        if config.model.edge_weights and WEIGHT in partition.edge_columns and not config.model.class_path:
            partition.check_weights()
        whole: Any = goal.extend(model)
    if config.inputs.standardize and width:
        model.standard_inputs = Standard(*inputs.moments(trained, graph.channel, world))
    if config.task.standardize:
        model.standard_target = Standard(*goal.moments(trained))
    model = whole.to(device=world.device, dtype=dtype)
    share_model(model, world, config.model.class_path)
    learned = SparseEmbedding(
        partition.flat_row, extra, EmbeddingConfig(), train.lr, train.seed, dtype, world.device
    ) if extra else None  # fmt: skip
    widths = {} if config.sampling.window_size else model.node_state
    return model, SequenceRows(torch.from_numpy(partition.flat_row).to(world.device), widths, learned, dtype)


def _describe(session: Session) -> list[str]:
    """Collective."""
    world, partition, config, loaders = session.world, session.partition, session.config, session.loaders
    counts = world.reduce_array(partition.count_edges())
    splits = ", ".join(f"{name} {len(loaders[name].snapshots)}" for name in SPLITS)
    if partition.splits and config.data.split_by != GRAPH:
        splits += " (not the splits of the graph: see data.split_by)"
    history = f"windows of {config.sampling.window_size}" if config.sampling.window_size else "state carried on"
    unread = f"edge columns not read: {', '.join(partition.unread)} (models weigh by {WEIGHT}, with model.edge_weights)"
    return [
        f"{world.size} ranks x {world.threads} threads on {world.device.type}, plans ahead: "
        f"{loaders['train'].prefetch}; groups that split time: {world.num_groups}",
        f"{partition.book.num_nodes} nodes, {partition.num_snapshots} snapshots of {counts.min()} to "
        f"{counts.max()} edges in {partition.book.offsets.shape[1] - 1} parts",
        f"{session.goal.describe()}; snapshots: {splits}; {history}",
        f"{config.train.precision}; {session.batches['train'].num_steps} steps an epoch",
        *([unread] if partition.unread else []),
    ]
