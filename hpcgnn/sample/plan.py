"""The plan of a temporal step: everything that depends on the graph and the seed, and nothing that depends on weights.

b events that this rank handles, R roles an event (source, destination, negative destinations, negative sources), N =
b R roots, role by role; U unique nodes; M requests that this rank serves as an owner.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch

from hpcgnn.comm.route import Route
from hpcgnn.native.dispatch import upload
from hpcgnn.nn.blocks import Query


@dataclass(slots=True)
class WritePlan:
    """Who writes which memory after the step: the last event of each node in the global batch.

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
    """As WritePlan for nodes whose memory every rank keeps, all of them or the hot ones: winners are told to all ranks.

    node [a] rows of the unique nodes whose state is sent, once each: of winners and, where mails hold it, of their
    others; event, other_root [w] as in WritePlan; node_counts, counts [R] states and winners of every rank. Of all
    winners, in rank order: rows [m] of the memory, time [m], and own, other [m] places of both endpoints among all
    states.
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
    """Mails of a step that are more than the winners' own: to every endpoint, or to neighbours as well.

    As sender: node, other, other_root, event [w] as in WritePlan, one a message, grouped by receiving rank with
    send_counts [R]. As owner of the receivers: message [m] place among the received messages (receive_counts [R]), rows
    [m] local, in order of (row, event), number [m] place among its row's mails, time [m]. For the mean instead one mail
    a row: rows, time [u] and the segments (indptr [u + 1], message) of the messages to average.
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


Part = TypeVar("Part", bound=WritePlan | Announcement | Delivery | None)


def on_device(part: Part, device: torch.device) -> Part:
    """The same with its tensors and routes on a device."""
    if part is None or device.type == "cpu":
        return part
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    movable = {name: value for name, value in values.items() if isinstance(value, torch.Tensor | Route)}
    put = lambda value: value.to(device) if isinstance(value, Route) else upload(value, device)  # noqa: E731
    moved: dict[str, Any] = {name: put(value) for name, value in movable.items()}
    found: Any = replace(part, **moved)
    return found


@dataclass(slots=True)
class StepPlan:
    """One step. num_events b; num_negatives k; paired: negatives have sources of their own; nearby: global ids of the
    roots [N] and of their neighbours [N, K] (-1 pads) for decoders that compare them, else None; columns: the events'
    label and the like; write, hot, delivery: None without memory; hot: of the hot nodes, where there are any; delivery:
    None when mails are but the winners' own; final: no further plan of this step scores more negatives."""

    step: int
    epoch: int
    batch_size: int
    num_events: int
    num_negatives: int
    paired: bool
    event_row: np.ndarray
    route: Route
    query: Query
    nearby: tuple[torch.Tensor, torch.Tensor] | None
    event_feature: torch.Tensor
    write: WritePlan | Announcement | None
    hot: Announcement | None
    delivery: Delivery | None
    columns: dict[str, torch.Tensor]
    final: bool = True

    @property
    def identity(self) -> torch.Tensor:
        """Keys [N] of the roots' random numbers."""
        return self.query.identity
