"""Mails of generated events on any ranks: who gets which, against a plain loop over all events."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from same_verdict import same_verdict

from hpcgnn.graph.book import Book
from hpcgnn.temporal.graph import Events
from hpcgnn.temporal.mail import Mailing, list_mails, plan_delivery
from hpcgnn.temporal.plan import Delivery

NODE = st.integers(0, 7)
EVENT = st.tuples(NODE, NODE, st.lists(st.just(-1) | NODE, min_size=4, max_size=4), st.integers(0, 11))


def mails_of(events, to_neighbors: bool):
    """(target, event, order, sending endpoint) of every mail, the first of an event to a target."""
    for number, (src, dst, around, _) in enumerate(events):
        targets = [(src, 0, 0), (dst, 1, 1)]
        if to_neighbors:
            targets += [(node, 2 + slot, slot // 2) for slot, node in enumerate(around) if node >= 0]
        reached = set()
        for target, order, side in targets:
            if target not in reached:
                reached.add(target)
                yield target, number, order, side


def split_by_rank(sent: Delivery) -> list[np.ndarray]:
    """The messages that a rank sends, by receiver."""
    return np.split(sent.node.numpy(), np.cumsum(sent.send_counts)[:-1])


@given(
    events=st.lists(EVENT, max_size=8), to_neighbors=st.booleans(), slots=st.integers(1, 3), mean=st.booleans(),
    to_all=st.booleans(),
    first=st.sampled_from([0, 5, (1 << 31) - 4, (1 << 32) - 9]),
)  # fmt: skip
@example(events=[(0, 7, [-1] * 4, 0)], to_neighbors=False, slots=2, mean=False, to_all=False, first=(1 << 31) - 4)
def test_mails_reach_their_nodes(comm, channel, events, to_neighbors, slots, mean, to_all, first):
    """The newest of a node, at its owner or at all ranks, by event and not by arrival. ``first`` others come before the
    nodes' rows."""
    book = Book((first + 8) * np.arange(comm.size + 1)[None], comm.size, ("node",))
    row, home = np.arange(8) // comm.size + first, np.arange(8) % comm.size
    node_id = home * (first + 8) + row
    here = [number for number, event in enumerate(events) if event[3] % comm.size == comm.rank]
    own = [events[number] for number in here]
    src, dst = (node_id[[event[end] for event in own]] for end in (0, 1))
    around = np.array([event[2] for event in own], np.int64).reshape(-1, 2, 2)
    neighbors = np.where(around < 0, -1, node_id[around]).transpose(1, 0, 2).reshape(-1, 2)
    with same_verdict(comm):
        rows = np.array(here, np.int64)
        batch = Events(rows, src, dst, 10 * rows, {})
        # Roots are named by their event and side.
        root = np.concatenate([2 * rows, 2 * rows + 1])
        mailing = Mailing(slots, to_neighbors, mean)
        mails = list_mails(mailing, batch, neighbors)
        owner, local = book.locate(mails.target)
        if to_all:
            owner, local = None, np.argsort(node_id)[np.searchsorted(np.sort(node_id), mails.target)] + first
            row, home = np.arange(8) + first, np.full(8, comm.rank)
        sent = plan_delivery(mailing, batch, mails, owner, local, root, channel)
        assert sent.to_all == to_all
        pieces = comm.allgather([sent.node.numpy()] if to_all else split_by_rank(sent))
        messages = np.concatenate([piece[0 if to_all else comm.rank] for piece in pieces])
        assert len(messages) == sent.receive_counts.sum()
        found = {int(node): [] for node in np.flatnonzero(home == comm.rank)}
        for target, *mail in mails_of(events, to_neighbors):
            found.get(target, []).append(mail)
        expected = [(int(row[node]), sorted(mails)) for node, mails in found.items() if mails]
        if mean:
            assert sent.rows.tolist() == [at for at, _ in expected]
            assert sent.time.tolist() == [10 * mails[-1][0] for _, mails in expected]
            assert np.diff(sent.indptr).tolist() == [len(mails) for _, mails in expected]
            kept = [mail for _, mails in expected for mail in mails]
        else:
            kept = [mail for _, mails in expected for mail in mails[-slots:]]
            assert sent.rows.tolist() == [at for at, mails in expected for _ in mails[-slots:]]
            assert sent.time.tolist() == [10 * event for event, _, _ in kept]
            assert sent.number.tolist() == [number for _, mails in expected for number in range(len(mails[-slots:]))]
        assert messages[sent.message.numpy()].tolist() == [2 * event + side for event, _, side in kept]
