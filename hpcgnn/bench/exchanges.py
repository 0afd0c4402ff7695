"""Describes the exchanges of a temporal step one by one: which rows, how wide, in which direction.

Widths come from where the records are defined, so that they cannot drift from what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.bench.counts import RowCounts
from hpcgnn.loop.session import Session
from hpcgnn.temporal import neighbors
from hpcgnn.temporal.config import RunConfig
from hpcgnn.temporal.mail import TOLD_BYTES

FEATURE_BYTES, ROW_ID_BYTES = 4, 4  # float32 event features; int32 rows in a route's requests
EXTRAS = 2  # loss and stop flag travel with the gradients


@dataclass(frozen=True, slots=True)
class StepExchange:
    """An alltoallv of a step. kind: of rows, one of counts.KINDS or HOT_KINDS; by_asker: sent by the ranks that ask,
    not by those that serve; planned: made while planning, in the background; agrees: an all-to-all of row counts comes
    before it."""

    name: str
    kind: str
    width: int
    by_asker: bool
    planned: bool
    agrees: bool = False


# The settings that counts and widths describe; with others other rows are exchanged.
MODELLED: dict[str, dict[str, tuple]] = {
    "task": {"kind": ("link",)},
    "model": {"class_path": ("",), "embedding": ("attention",), "layers": (1,), "message_from": ("memory",),
              "decoder": ("mlp",)},
    "memory": {"updater": ("gru", "rnn"), "aggregator": ("last",), "mailbox_slots": (1,), "deliver_to": ("self",),
               "placement": ("sharded",), "staleness": (0,)},
    "sampling": {"strategy": ("recent", "uniform"), "boundary_half_life": (0,), "chunks": (1,)},
}  # fmt: skip


def check_modelled(config: RunConfig) -> None:
    """Raise ValueError for a model or sampler whose exchanges are not described here."""
    for section, choices in MODELLED.items():
        for name, allowed in choices.items():
            value = getattr(getattr(config, section), name)
            if value not in allowed:
                listed = " or ".join(map(repr, allowed))
                raise ValueError(f"the cost model knows {section}.{name} {listed} only, got {value!r}")


def exchanges(session: Session) -> list[StepExchange]:
    """List the exchanges of a training step, in order."""
    config, partition, model = session.config, session.partition, session.model
    item, features = session.dtype.itemsize, partition.edge_width
    reply = neighbors.reply_dtype(config.sampling.fanout, partition).itemsize
    columns = session.memory.table.tensors()
    node_feature = partition.node_width * item
    at_owner = config.memory.update_at == "owner"
    state = model.state_width * item
    whole = sum(c.element_size() * int(np.prod(c.shape[1:])) for c in columns)
    mail = state + features * item
    listed = [
        StepExchange("request", "requests", neighbors.REQUEST.itemsize, by_asker=True, planned=True, agrees=True),
        StepExchange("reply", "requests", reply, by_asker=False, planned=True),
        StepExchange("event row ids", "features", ROW_ID_BYTES, by_asker=True, planned=True, agrees=True),
        StepExchange("event features", "features", FEATURE_BYTES * features, by_asker=False, planned=True),
        StepExchange("row ids", "rows", ROW_ID_BYTES, by_asker=True, planned=True, agrees=True),
        StepExchange("node features", "rows", node_feature, by_asker=False, planned=True),
        StepExchange("memory", "rows", state if at_owner else whole, by_asker=False, planned=False),
        StepExchange("gradients of rows", "rows", state, by_asker=True, planned=False),
        StepExchange("mail", "mails", mail if at_owner else state + mail, by_asker=True, planned=False),
    ]
    if config.memory.hot_nodes:
        listed += [
            StepExchange("winners told", "told", TOLD_BYTES, by_asker=True, planned=True, agrees=True),
            StepExchange("states told", "states", state, by_asker=True, planned=False, agrees=True),
            StepExchange("features told", "told", features * item, by_asker=True, planned=False),
        ]
    without = ["features told"] * (features == 0) + ["gradients of rows"] * (not at_owner)
    without += ["node features"] * (node_feature == 0)
    return [e for e in listed if e.name not in without and (e.kind != "features" or features)]


def gradient_bytes(session: Session) -> int:
    """Return the size of the buffer that the all-reduce sums."""
    parameters = sum(p.numel() for p in session.model.parameters() if p.requires_grad)
    return (parameters + EXTRAS) * session.dtype.itemsize


def sent_bytes(step_exchanges: list[StepExchange], counts: RowCounts, planned: bool) -> np.ndarray:
    """Count the bytes [R] that each rank sends in all counted steps, in the background or not, as Channel does."""
    total = np.zeros(counts.size, np.int64)
    for exchange in step_exchanges:
        if exchange.planned == planned:
            tally = counts.kinds[exchange.kind]
            total += exchange.width * (tally.asked if exchange.by_asker else tally.served)
    return total
