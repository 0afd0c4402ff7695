"""What crosses the wire in a temporal step, exchange by exchange: which rows, how wide, in which direction.

Widths come from where the records are defined, so that they cannot drift from what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.bench.counts import Counts
from hpcgnn.loop.session import Session
from hpcgnn.temporal import neighbors
from hpcgnn.temporal.config import RunConfig
from hpcgnn.temporal.mail import TOLD_BYTES

FEATURE_BYTES, ROW_ID_BYTES = 4, 4  # float32 event features; int32 rows in a route's requests
EXTRAS = 2  # loss and stop flag travel with the gradients


@dataclass(frozen=True, slots=True)
class Exchange:
    """One alltoallv of a step. kind: of rows, as in counts.KINDS and HOT_KINDS; asked: sent by those who ask, not who
    serve; planned: made while planning, in the background; agrees: an all-to-all of row counts comes before it."""

    name: str
    kind: str
    width: int
    asked: bool
    planned: bool
    agrees: bool = False


# What the counts and widths below describe; other settings ask for other rows.
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
                known = " or ".join(map(repr, allowed))
                raise ValueError(f"the cost model knows {section}.{name} {known} only, got {value!r}")


def exchanges(session: Session) -> list[Exchange]:
    """The exchanges of a training step, in order."""
    config, partition, model = session.config, session.partition, session.model
    item, features = session.dtype.itemsize, partition.edge_width
    reply = neighbors.reply_dtype(config.sampling.fanout, session.graph.splits.history.feature is not None).itemsize
    columns = session.memory.table.tensors()
    node_feature = partition.node_width * item
    at_owner = config.memory.update_at == "owner"
    state = model.state_width * item
    whole = sum(c.element_size() * int(np.prod(c.shape[1:])) for c in columns)
    mail = state + features * item
    found = [
        Exchange("request", "requests", neighbors.REQUEST.itemsize, asked=True, planned=True, agrees=True),
        Exchange("reply", "requests", reply, asked=False, planned=True),
        Exchange("event features", "features", FEATURE_BYTES * features, asked=False, planned=True, agrees=True),
        Exchange("row ids", "rows", ROW_ID_BYTES, asked=True, planned=True, agrees=True),
        Exchange("memory", "rows", (state if at_owner else whole) + node_feature, asked=False, planned=False),
        Exchange("gradients of rows", "rows", state, asked=True, planned=False),
        Exchange("mail", "mails", mail if at_owner else state + mail, asked=True, planned=False),
    ]
    if config.memory.hot_nodes:
        found += [
            Exchange("winners told", "told", TOLD_BYTES, asked=True, planned=True, agrees=True),
            Exchange("states told", "states", state, asked=True, planned=False, agrees=True),
            Exchange("features told", "told", features * item, asked=True, planned=False),
        ]
    without = ["features told"] * (features == 0) + ["gradients of rows"] * (not at_owner)
    return [e for e in found if e.name not in without and (e.kind != "features" or features)]


def gradient_bytes(session: Session) -> int:
    """Size of the buffer that the all-reduce sums."""
    parameters = sum(p.numel() for p in session.model.parameters() if p.requires_grad)
    return (parameters + EXTRAS) * session.dtype.itemsize


def sent_bytes(found: list[Exchange], counts: Counts, planned: bool) -> np.ndarray:
    """Bytes [R] that each rank sends in all counted steps, in the background or not: what Channel counts."""
    total = np.zeros(counts.size, np.int64)
    for exchange in found:
        if exchange.planned == planned:
            tally = counts.kinds[exchange.kind]
            total += exchange.width * (tally.asked if exchange.asked else tally.served)
    return total
