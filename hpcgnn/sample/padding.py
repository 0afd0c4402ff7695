"""Plans of temporal steps with padded shapes, so that many steps have the same ones: what a step computes from padding
reaches neither the loss nor a gradient nor the node memory.

Lengths that depend on the data grow to the next of four sizes an octave (`padded_length`), which depend on nothing but
the plan: a run that goes on pads as one that never stopped.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from hpcgnn.comm.route import Route
from hpcgnn.loop.step_graphs import padded_length
from hpcgnn.nn.blocks import Level, Query
from hpcgnn.sample.plan import Announcement, StepPlan, WritePlan


def pad_plan(plan: StepPlan) -> StepPlan:
    """The plan of a step on one rank, with padded unique nodes, queries below the roots, and winners; unchanged where
    it has no roots.

    Padding reads the first unique node and is read by nobody; padded winners are the first winner again, and write what
    it writes.
    """
    if plan.num_events == 0:
        return plan
    nodes = plan.route.num_wanted
    query = _pad_query(plan.query, padded_length(nodes))
    assert not isinstance(plan.write, Announcement)
    return replace(plan, route=_pad_route(plan.route), query=query, write=_pad_winners(plan.write))


def _pad_route(route: Route) -> Route:
    return Route.alone(route.channel, _repeat(route.requests, padded_length(route.num_wanted)))


def _pad_query(query: Query, below: int) -> Query:
    levels, nodes = [], below
    for level in query.levels:
        top = level is query.levels[-1]
        count = len(level.root) if top else padded_length(len(level.root))
        levels.append(_pad_level(level, count, below))
        below = count
    transpose = _pad_transpose(query.root_transpose, nodes, len(query.root))
    return replace(query, root_transpose=transpose, levels=tuple(levels))


def _pad_level(level: Level, count: int, below: int) -> Level:
    """To ``count`` queries over ``below`` rows."""
    plan, slots = level.attention, level.attention.slot.shape[1]
    indptr, order = _pad_transpose((plan.slot_indptr, plan.slot_order), below, count * slots)
    attention = replace(
        plan, slot=_fill(plan.slot, count, -1), count=_fill(plan.count, count, 0), dt=_fill(plan.dt, count, 0),
        edge_of=_fill(plan.edge_of, count, -1), slot_indptr=indptr, slot_order=order,
    )  # fmt: skip
    transpose = _pad_transpose(level.root_transpose, below, count)
    return replace(level, root=_repeat(level.root, count), root_transpose=transpose, attention=attention)


def _pad_transpose(transpose: tuple[torch.Tensor, torch.Tensor], targets: int, length: int):
    """Nothing points at the further targets, and what points at others does not change."""
    indptr, order = transpose
    more = indptr[-1:].expand(targets + 1 - len(indptr))
    return torch.cat([indptr, more]), _fill(order, length, 0)


def _pad_winners(write: WritePlan | None) -> WritePlan | None:
    if write is None:
        return None
    count = padded_length(len(write.rows))
    names = ("node", "other", "event", "other_root", "rows", "place", "time")
    padded = {name: _repeat(getattr(write, name), count) for name in names}
    return replace(write, route=_pad_route(write.route), **padded)


def _repeat(values: torch.Tensor, length: int) -> torch.Tensor:
    """Padded with the first one."""
    return torch.cat([values, values[:1].expand(length - len(values))])


def _fill(values: torch.Tensor, length: int, value: int) -> torch.Tensor:
    return torch.cat([values, values.new_full((length - len(values), *values.shape[1:]), value)])
