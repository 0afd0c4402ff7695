"""Computes outputs of nodes from sampled neighbors, for models whose layers cannot be computed for all nodes at once.

n local nodes, all types one behind the other; O columns of an output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np
import torch

from hpcgnn.comm.route import Route
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.question_file import Questions
from hpcgnn.loop.session import Session
from hpcgnn.static.goals import NodeGoal
from hpcgnn.static.inference import infer, why_not_by_layers
from hpcgnn.static.loader import SeedLoader, Seeds, options_of
from hpcgnn.static.plan import GraphPlan
from hpcgnn.static.sampling.seeds import SeedBatches, SeedPool, make_pool
from hpcgnn.static.sampling.times import NO_LIMIT, TIME


def outputs(session: Session) -> torch.Tensor:
    """Collective. Compute the outputs [n, O] of local nodes by all their neighbors, or, for a model that lacks layers,
    or a run with times, by sampled ones: only of the types that the run learned, zeros elsewhere."""
    problem = why_not_by_layers(session.model, session.config)
    if not problem:
        return infer(session)
    if session.world.rank == 0:
        print(f"note: answers are computed from sampled neighbors: {problem}", file=sys.stderr)
    return sampled_outputs(session)


@torch.no_grad()
def sampled_outputs(session: Session) -> torch.Tensor:
    """Collective. Compute the outputs [n, O] of local nodes of the learned types by sampled neighbors. The neighbors of
    labeled nodes of validation and test are the neighbors that evaluation samples, so that their outputs are the ones
    that are scored."""
    goal, partition, world = session.goal, session.partition, session.world
    found = torch.zeros(partition.num_nodes, goal.num_outputs, dtype=session.dtype)
    left = np.ones(partition.num_nodes, bool)  # nodes that no pass has computed yet
    if isinstance(goal, NodeGoal):
        kinds = [goal.node_type]
        for split in SPLITS[1:]:
            with session.plans(split, 0) as plans:
                _keep(session, goal.node_type, session.batches[split], plans, found, left)
    else:
        kinds = sorted({goal.learned.src_type, goal.learned.dst_type})
    for kind in kinds:
        nodes = partition.of_type(kind)
        rows = np.flatnonzero(left[nodes])
        ids = partition.global_ids(kind)[rows]
        base = partition.book.type_base()
        keys = partition.flat_row[nodes][rows] - base[kind]
        columns = {"id": ids}
        if isinstance(goal, NodeGoal) and TIME in partition.columns[kind]:  # the ends of links see all neighbors
            columns[TIME] = partition.columns[kind][TIME][rows]
        pool = make_pool("nodes", keys, int(base[kind + 1] - base[kind]), columns, world, session.graph.channel)
        loader = _loader(session, Seeds(pool, ((kind, "id"),)))
        with loader.plans(0) as plans:
            _keep(session, kind, loader.batches, plans, found, left)
    return found.to(world.device)


@torch.no_grad()
def pair_ends(session: Session, pairs: Questions) -> list[torch.Tensor]:
    """Collective. Compute the outputs [m, O] of the sources and of the destinations of pairs, from neighbors that are
    no newer than the pairs' value "time", in ticks; without it from all."""
    columns = pairs.node | {TIME: pairs.value.get("time", np.full(len(pairs.row), NO_LIMIT))}
    roots = session.goal.roots[:2]
    # Every R-th pair is at this rank, as many as it can have of each step: none is moved to another rank.
    loader = _loader(session, Seeds(SeedPool("pairs", pairs.row, pairs.total, columns), roots))
    none = torch.empty(0, session.goal.num_outputs, dtype=session.dtype, device=session.world.device)
    ends = [[none], [none]]
    with loader.plans(0) as plans:
        for plan in plans:
            session.watchdog.at("pairs", plan.step)
            outputs = session.task.outputs(plan)
            for rows, (kind, _), places in zip(ends, roots, plan.roots, strict=True):
                rows.append(outputs[kind][places])
    return [torch.cat(rows) for rows in ends]


def _loader(session: Session, seeds: Seeds) -> SeedLoader:
    """Collective. Make a loader that samples as evaluation does."""
    config = session.config
    size = config.eval.batch_size or config.train.batch_size
    return SeedLoader(session.graph, seeds, batch_size=size, **options_of(config))


def _keep(
    session: Session, kind: int, batches: SeedBatches, plans: Iterable[GraphPlan], found: torch.Tensor, left: np.ndarray
) -> None:  # fmt: skip
    """Collective. Compute the outputs of the seeds of plans, nodes of a type, and keep them at the owners."""
    partition, channel, nodes = session.partition, session.graph.channel, session.partition.of_type(kind)
    ownership = partition.book.of_type(kind)
    for plan in plans:
        session.watchdog.at("sampled outputs", plan.step)
        places = plan.roots[0].ravel()
        rows = session.task.outputs(plan)[kind][places].cpu()
        route = Route.plan(ownership, batches.columns["id"][batches.at(plan.step)], channel)
        found[nodes][route.requests] = route.push(rows).to(found.dtype)
        left[nodes][route.requests.numpy()] = False
