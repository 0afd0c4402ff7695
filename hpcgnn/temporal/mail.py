"""Plans which mails go to which nodes after a step. b events of this rank: endpoints are numbered side * b + event,
like the first 2 b roots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route, narrow_rows
from hpcgnn.temporal.neighbors import Winners
from hpcgnn.temporal.plan import Announcement, Delivery, WritePlan

RECORD = np.dtype([("local", "u4"), ("order", "i4"), ("message", "i4"), ("event", "i8"), ("time", "i8")])


@dataclass(frozen=True, slots=True)
class Mailing:
    """Kind of mails that a model reads. slots: number of newest mails that a node keeps; to_neighbors: neighbors of the
    endpoints get mails as well. mean: a node keeps the mean of a batch's mails, not the newest ones; from_memory: mails
    hold the other endpoint's memory, not its embedding. sums: each event changes the memories of both endpoints, and
    nobody keeps mails (projections of walks)."""

    slots: int = 1
    to_neighbors: bool = False
    mean: bool = False
    from_memory: bool = True
    sums: bool = False

    @property
    def simple(self) -> bool:
        """Whether a node keeps only its newest mail of a batch: one slot, no neighbors, no mean, no sums."""
        return self.slots == 1 and not (self.to_neighbors or self.mean or self.sums)


def plan_winners(
    route: Route, winner: np.ndarray, root: np.ndarray, num_events: int, num_unique: int, winners: Winners,
    scratch: np.ndarray,
) -> WritePlan:  # fmt: skip
    """Plan the way of the winners' rows [w] (places among the roots) to their owners: a part of the step's route, no
    exchange. scratch [memory rows] int64, all -1, and again so afterwards."""
    winner = winner[np.argsort(root[winner], kind="stable")]
    written = np.zeros(num_unique, bool)
    written[root[winner]] = True
    requests = route.requests.numpy()
    scratch[winners.local] = np.arange(len(winners.local))
    number = scratch[requests]
    requested = number >= 0
    requested[requested] = winners.rank[number[requested]] == route.requesters()[requested]
    scratch[winners.local] = -1  # all -1 again: the next step relies on it, and clearing the whole array costs more
    tensor = torch.from_numpy
    other = (winner + num_events) % max(1, 2 * num_events)
    return WritePlan(
        route.restrict(written, requested), tensor(root[winner].astype(np.int64)), tensor(root[other].astype(np.int64)),
        tensor(winner % max(1, num_events)), tensor(other), tensor(requests[requested]),
        tensor(route.position.numpy()[requested]), tensor(winners.time[number[requested]]),
    )  # fmt: skip


def plan_announcement(
    winner: np.ndarray, number: np.ndarray, first: int, root: np.ndarray, events, from_memory: bool, channel: Channel
) -> Announcement:
    """Collective. Plan to announce winners [w] (places among the roots) to all ranks, each of which keeps node
    ``number`` [w] in row first + number. root [N] rows among the unique nodes; events: this rank's, with their times;
    from_memory: as in Mailing."""
    count = len(events)
    event, other = winner % max(1, count), (winner + count) % max(1, 2 * count)
    sent = np.concatenate([winner, other]) if from_memory else winner
    node, place = np.unique(root[sent], return_inverse=True)
    own, others = place[: len(winner)], place[len(sent) - len(winner) :]
    node_counts, counts = (channel.counts(np.full(channel.size, len(rows))) for rows in (node, winner))
    record = np.stack([number, events.time[event], own, others], axis=1)
    rows, time, own, others = channel.everyone(torch.from_numpy(record), counts).T.contiguous()
    shift = torch.from_numpy(np.repeat(np.cumsum(node_counts) - node_counts, counts))
    tensor = torch.from_numpy
    return Announcement(
        tensor(node.astype(np.int64)), tensor(event), tensor(other), node_counts, counts, rows + first, time,
        own + shift, others + shift,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mails:
    """Mails of a step from this rank's events: target [m] global id of the receiver; event, side [m]: place of the
    event, and which endpoint is the sender; order [m] within the event. One mail an event and receiver."""

    target: np.ndarray
    event: np.ndarray
    side: np.ndarray
    order: np.ndarray

    def take(self, chosen: np.ndarray) -> Mails:
        """Return some of the mails, by a mask [m]."""
        return Mails(self.target[chosen], self.event[chosen], self.side[chosen], self.order[chosen])


def list_mails(mailing: Mailing, events, neighbors: np.ndarray) -> Mails:
    """List the mails of this rank's events, with src and dst, to their endpoints and, if wanted, to the endpoints'
    neighbors [N, K] (-1 pads)."""
    count = len(events)
    place = np.arange(count)
    targets = [events.src, events.dst]
    events_of, sides = [place, place], [np.zeros(count, np.int64), np.ones(count, np.int64)]
    orders = [np.zeros(count, np.int64), np.ones(count, np.int64)]
    if mailing.to_neighbors:
        other = neighbors[: 2 * count]
        root, slot = np.nonzero(other >= 0)
        targets.append(other[root, slot])
        events_of.append(root % max(1, count))
        sides.append(root // max(1, count))
        orders.append(2 + (root // max(1, count)) * other.shape[1] + slot)
    target, event, side, order = map(np.concatenate, (targets, events_of, sides, orders))
    by = np.lexsort((order, target, event))
    new = np.ones(len(by), bool)
    new[1:] = (np.diff(target[by]) != 0) | (np.diff(event[by]) != 0)
    keep = by[new]
    return Mails(target[keep], event[keep], side[keep], order[keep])


def plan_delivery(
    mailing: Mailing, events, mails: Mails, owner: np.ndarray | None, local: np.ndarray, root: np.ndarray,
    channel: Channel,
) -> Delivery:  # fmt: skip
    """Collective. Plan how mails get to the ranks that keep their receivers: ``owner`` [m], or, with None, all
    ranks, in rows ``local`` [m] there. events: this rank's, with row and time; root [N] rows of the roots among the
    unique nodes."""
    rank = np.zeros(len(local), np.int64) if owner is None else owner
    by = np.lexsort((mails.order, mails.event, rank))
    rank, event = rank[by], mails.event[by]
    endpoint = mails.side[by] * len(events) + event
    message, first = _number_messages(rank, endpoint)
    record = np.empty(len(by), RECORD)
    record["local"], record["order"], record["message"] = narrow_rows(local[by]), mails.order[by], message
    record["event"], record["time"] = events.row[event], events.time[event]
    size = 1 if owner is None else channel.size
    counts = np.stack([np.bincount(rank, minlength=size), np.bincount(rank[first], minlength=size)])
    counts = np.broadcast_to(counts, (2, channel.size)).copy()  # what goes to all ranks, goes to each
    serve = channel.array(np.ascontiguousarray(counts.T), *[np.ones(channel.size, np.int64)] * 2)
    received = _send(record, counts[0], np.ascontiguousarray(serve[:, 0]), owner is None, channel)
    shift = np.repeat(np.cumsum(serve[:, 1]) - serve[:, 1], serve[:, 0])
    sent = endpoint[first]
    other = (sent + len(events)) % max(1, 2 * len(events))
    rows = root.astype(np.int64)
    sender = (rows[sent], rows[other], other, sent % max(1, len(events)))
    receiver = _receive(received, received["message"] + shift, mailing)
    tensors: list[Any] = [None if a is None else torch.from_numpy(a) for a in (*sender, *receiver)]
    node, other_row, other_root, event_place, *received_tensors = tensors
    delivery = Delivery(
        node, other_row, other_root, event_place, counts[1].astype(np.int64), np.ascontiguousarray(serve[:, 1]),
        *received_tensors,
    )  # fmt: skip
    return replace(delivery, to_all=owner is None)


def _send(record: np.ndarray, counts: np.ndarray, received: np.ndarray, to_all: bool, channel: Channel) -> np.ndarray:
    """Collective. Send records to their ranks, or all of them to every rank."""
    if not to_all:
        return channel.array(record, counts, received)
    flat = torch.from_numpy(record.view(np.uint8).reshape(len(record), RECORD.itemsize))
    return channel.everyone(flat, received).numpy().reshape(-1).view(RECORD)


def _number_messages(owner: np.ndarray, endpoint: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Within each owner, number the different endpoints in order of first occurrence (owners are consecutive); returns
    the numbers and the places of first occurrence."""
    span = int(endpoint.max(initial=0)) + 1
    _, first, inverse = np.unique(owner * span + endpoint, return_index=True, return_inverse=True)
    by_place = np.argsort(first, kind="stable")
    rank = np.empty(len(first), np.int64)
    rank[by_place] = np.arange(len(first))
    first = first[by_place]
    begin = np.searchsorted(owner[first], owner[first], side="left")
    return (rank - begin[rank])[inverse], first


def _receive(record: np.ndarray, message: np.ndarray, mailing: Mailing) -> tuple[np.ndarray | None, ...]:
    """Order received mails as a Delivery has them: message, rows, number, time, indptr."""
    # By event, not by arrival: the order of a node's mails must not depend on which ranks sent them.
    by = np.lexsort((record["order"], record["event"], record["local"]))
    local = record["local"][by].astype(np.int64)
    rows, indptr = np.unique(local, return_index=True)
    indptr = np.append(indptr, len(local)).astype(np.int64)
    if mailing.mean or mailing.sums:
        time = record["time"][by]
        return message[by], rows, np.zeros(len(rows), np.int64), time if mailing.sums else time[indptr[1:] - 1], indptr
    from_end = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(len(local))
    keep = from_end <= mailing.slots
    by, local, from_end = by[keep], local[keep], from_end[keep]
    counts = np.minimum(np.diff(indptr), mailing.slots)
    number = np.repeat(counts, counts) - from_end
    return message[by], local, number, record["time"][by], None
