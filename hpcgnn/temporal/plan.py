"""The plan of a temporal step: everything that depends on the graph and the seed, and nothing that depends on weights.

b events that this rank handles, R roles per event (source, destination, negative destinations, negative sources), N = b
R roots, role by role. U unique nodes; M requests that this rank serves as an owner.

Where steps are CUDA graphs, plans are padded: lengths that depend on the data grow to the next of four sizes per octave
(`padded_length`). These sizes depend on the plan alone, so that a resumed run pads as one that never stopped. Values
that a step computes from padding reach neither the loss nor a gradient nor the node memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch

from hpcgnn.comm.route import Route
from hpcgnn.loop.step_graphs import padded_length
from hpcgnn.native import AttentionPlan
from hpcgnn.native.dispatch import upload
from hpcgnn.temporal.graph import EDGE_TYPE, LABEL

PLANNED = (LABEL, EDGE_TYPE)  # columns of events that steps read


@dataclass(slots=True)
class Level:
    """One layer: N queries over the rows of the level below (the unique nodes, for the lowest level).

    root [N] int64 the query's own row below, root_transpose (indptr, order) its transpose; attention: the neighbors'
    rows below; edge [., F] features of the events that attention.edge_of points at.
    """

    root: torch.Tensor
    root_transpose: tuple[torch.Tensor, torch.Tensor]
    attention: AttentionPlan
    edge: torch.Tensor


@dataclass(slots=True)
class Query:
    """The roots to embed: N = R roles x b events, role by role (source, destination, negatives).

    root [N] int64: rows of the unique nodes, with their transpose; time [N] int64; identity [N] int64: keys of the
    roots' random numbers. levels: from the lowest to the roots' level; windows: the top level has N x windows queries,
    window by window, the newest first. num_negatives: k of each event; paired: they have separate sources.
    """

    root: torch.Tensor
    root_transpose: tuple[torch.Tensor, torch.Tensor]
    time: torch.Tensor
    identity: torch.Tensor
    levels: tuple[Level, ...]
    windows: int = 1
    num_negatives: int = 0
    paired: bool = False

    def by_role(self, rows: torch.Tensor) -> torch.Tensor:
        """Reshape rows [N, ...] of the roots, role by role: [R, b, ...]."""
        roles = 2 + self.num_negatives * (1 + self.paired)
        return rows.view(roles, len(rows) // roles, *rows.shape[1:])

    def pairs(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split rows [N, ...] of the roots into both ends of the pairs, of the events and then of their negatives: of
        destinations [1 + k, b, ...] and, first, of sources, [1, b, ...] where all pairs of an event have the same."""
        rows, k = self.by_role(rows), self.num_negatives
        sources = torch.cat([rows[:1], rows[2 + k :]]) if self.paired else rows[:1]
        return sources, rows[1 : 2 + k]


@dataclass(slots=True)
class WritePlan:
    """Writes of node memory after the step, each by the last event of its node in the global batch (the winner).

    route carries the winners' rows to their owners. As user, a winner: node, other [w] rows of the unique nodes, event
    [w] place among this rank's events, other_root [w] root of the other endpoint. As owner: rows [m] local, place [m]
    in the served rows, time [m] of the event.
    """

    route: Route
    node: torch.Tensor
    other: torch.Tensor
    event: torch.Tensor
    other_root: torch.Tensor
    rows: torch.Tensor
    place: torch.Tensor
    time: torch.Tensor


@dataclass(slots=True)
class Announcement:
    """Writes of memory that every rank keeps, of all nodes or the hot ones: winners are announced to all ranks.

    node [a]: rows of the unique nodes whose state is sent, once each: of winners and, where mails hold it, of the other
    endpoints. event [w]: place among this rank's events; other_root [w]: root of the other endpoint; node_counts,
    counts [R]: states and winners of every rank. Of all winners, in rank order: rows [m] of the memory, time [m], and
    own, other [m], the places of both endpoints among all states.
    """

    node: torch.Tensor
    event: torch.Tensor
    other_root: torch.Tensor
    node_counts: np.ndarray
    counts: np.ndarray
    rows: torch.Tensor
    time: torch.Tensor
    own: torch.Tensor
    other: torch.Tensor


@dataclass(slots=True)
class Delivery:
    """Mails of a step that are more than the winners' own: to every endpoint, or to neighbors as well.

    As sender: node, other, other_root, event [w] as in WritePlan, one a message, grouped by receiving rank with
    send_counts [R]. As owner of the receivers, in order of (row, event): message [m] place among the received messages
    (receive_counts [R]), rows [m] local, number [m] place among its row's mails, time [m]. For the mean instead one
    mail a row: rows, time [u] and the segments (indptr [u + 1], message) of the messages to average; for sums rows [u],
    the same segments, and time [m] of every message. to_all: all ranks keep the receivers, and get all messages.
    """

    node: torch.Tensor
    other: torch.Tensor
    other_root: torch.Tensor
    event: torch.Tensor
    send_counts: np.ndarray
    receive_counts: np.ndarray
    message: torch.Tensor
    rows: torch.Tensor
    number: torch.Tensor
    time: torch.Tensor
    indptr: torch.Tensor | None = None
    to_all: bool = False


Part = TypeVar("Part", bound=WritePlan | Announcement | Delivery | None)


def on_device(part: Part, device: torch.device) -> Part:
    """Return this plan with its tensors and routes on a device."""
    if part is None or device.type == "cpu":
        return part
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    moved: dict[str, Any] = {name: upload(value, device) for name, value in values.items() if torch.is_tensor(value)}
    moved |= {name: value.to(device) for name, value in values.items() if isinstance(value, Route)}
    there: Any = replace(part, **moved)
    return there


@dataclass(slots=True)
class StepPlan:
    """One step. num_events: b. nearby: global ids of the
    roots [N] and of their neighbors [N, K] (-1 pads) for decoders that compare them, else None. columns: the events'
    label, their edge type ("rel"), and count, the number of negatives of each that count, if not all. write, hot,
    delivery: None without memory; hot: of the hot nodes, where there are any; delivery, hot_delivery: mails to the
    nodes that write and hot are of, None when only the winners get mails. final: no further plan of this step scores
    more negatives; node_feature [U, .]: of the unique nodes, None where nodes have none; clocks [1 + k, b, F]: numbers
    of the pairs of the events and of their negatives, for decoders that read them, without numbers of memory."""

    step: int
    epoch: int
    batch_size: int
    num_events: int
    event_row: np.ndarray
    route: Route
    query: Query
    nearby: tuple[torch.Tensor, torch.Tensor] | None
    event_feature: torch.Tensor
    write: WritePlan | Announcement | None
    hot: Announcement | None
    delivery: Delivery | None
    hot_delivery: Delivery | None
    columns: dict[str, torch.Tensor]
    final: bool = True
    node_feature: torch.Tensor | None = None
    clocks: torch.Tensor | None = None

    @property
    def num_negatives(self) -> int:
        """Number k of negatives of each event."""
        return self.query.num_negatives

    @property
    def paired(self) -> bool:
        """Whether negatives have separate sources."""
        return self.query.paired


def pad_plan(plan: StepPlan) -> StepPlan:
    """Pad the plan of a step with events on one rank: its unique nodes, queries below the roots, and winners.

    Padding reads the first unique node and is read by nobody; padded winners are the first winner again, and write what
    it writes.
    """
    nodes = plan.route.num_wanted
    query = _pad_query(plan.query, padded_length(nodes))
    assert not isinstance(plan.write, Announcement)
    feature = None if plan.node_feature is None else _repeat(plan.node_feature, padded_length(nodes))
    write = _pad_winners(plan.write)
    return replace(plan, route=_pad_route(plan.route), query=query, write=write, node_feature=feature)


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
    """Pad a level to ``count`` queries over ``below`` rows."""
    plan, slots = level.attention, level.attention.slot.shape[1]
    indptr, order = _pad_transpose((plan.slot_indptr, plan.slot_order), below, count * slots)
    attention = replace(
        plan, slot=_fill(plan.slot, count, -1), count=_fill(plan.count, count, 0), dt=_fill(plan.dt, count, 0),
        edge_of=_fill(plan.edge_of, count, -1), slot_indptr=indptr, slot_order=order,
    )  # fmt: skip
    transpose = _pad_transpose(level.root_transpose, below, count)
    return replace(level, root=_repeat(level.root, count), root_transpose=transpose, attention=attention)


def _pad_transpose(transpose: tuple[torch.Tensor, torch.Tensor], targets: int, length: int):
    """Pad a transpose: nothing points at the further targets, and what points at others does not change."""
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
    """Pad with the first row."""
    return torch.cat([values, values[:1].expand(length - len(values), *values.shape[1:])])


def _fill(values: torch.Tensor, length: int, value: int) -> torch.Tensor:
    return torch.cat([values, values.new_full((length - len(values), *values.shape[1:]), value)])
