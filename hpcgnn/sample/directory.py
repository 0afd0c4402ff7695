"""A sorted list of nodes, spread over ranks: place in the list to global id, without any rank holding the list."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World
from hpcgnn.store.book import BlockOwnership


class NodeDirectory:
    """Nodes in order of flat row id, which no partition changes. ``size`` is their number.

    Over all nodes of a graph the place of a node is its flat row id.
    """

    def __init__(self, world: World, channel: Channel, flat_rows: np.ndarray, global_ids: np.ndarray, num_nodes: int):
        """Collective. flat_rows, global_ids [n] int64: this rank's members, of ``num_nodes`` nodes in the graph."""
        blocks = BlockOwnership.even(num_nodes, channel.size)
        owner, _ = blocks.locate(flat_rows)
        order = np.argsort(owner, kind="stable")
        send = np.bincount(owner, minlength=channel.size)
        receive = channel.counts(send)
        pairs = channel.array(np.stack([flat_rows, global_ids], axis=1)[order], send, receive)
        self._global_ids = torch.from_numpy(pairs[np.argsort(pairs[:, 0], kind="stable"), 1].copy())
        counts = world.allgather_array(np.array([len(pairs)], np.int64)).ravel()
        self._ownership = BlockOwnership(np.concatenate(([0], np.cumsum(counts))))
        self._channel = channel
        self.size = int(counts.sum())

    def lookup(self, places: np.ndarray) -> np.ndarray:
        """Collective. Global ids [n] of the nodes at ``places`` [n] in [0, size)."""
        unique, inverse = np.unique(places, return_inverse=True)
        (ids,) = Route.plan(self._ownership, unique, self._channel).pull(self._global_ids)
        return ids.numpy()[inverse.reshape(places.shape)]
