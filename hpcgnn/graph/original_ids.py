"""Finds nodes by their original ids, the ids in the graph's source."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.graph.book import Book


class OriginalIds:
    """Finds the nodes of one type by original id; every rank has the ids of its own nodes."""

    def __init__(self, book: Book, node_type: str, ids: np.ndarray, world: World):
        """ids [n] integers or bytes: of this rank's nodes of the type, in order of global id."""
        starts = book.of_type(book.node_types.index(node_type)).starts
        order = np.argsort(ids, kind="stable")
        self._ids, self._global_ids = ids[order], starts[world.rank] + order
        self._world, self.node_type = world, node_type

    @property
    def are_integers(self) -> bool:
        """Whether the type's ids are integers, not text."""
        return self._ids.dtype.kind in "iu"

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Collective. Find the global ids [n] of the ids [n] (integers, bytes or text), the same on all ranks; -1 where
        no node has one. Integers match bytes and text that spell them."""
        encoded = np.char.encode(ids, "utf-8") if ids.dtype.kind == "U" else ids
        return self._world.reduce_array(self._find_own(encoded), "max")

    def find_for_first(self, ids: np.ndarray | Any) -> np.ndarray | Any:
        """Collective. Find the global ids of original ids that rank 0 alone gives, repeated or not. Returns None on the
        other ranks."""
        unique = inverse = None
        if self._world.rank == 0:
            unique, inverse = np.unique(ids, return_inverse=True)
        global_ids = self.find(self._world.broadcast(unique))
        return None if inverse is None else global_ids[inverse]

    def _find_own(self, ids: np.ndarray) -> np.ndarray:
        own_ids, global_ids = self._ids, self._global_ids
        if len(own_ids) == 0:
            return np.full(len(ids), -1, np.int64)
        if ids.dtype.kind != "S" and own_ids.dtype.kind == "S":
            ids = ids.astype("S")
        elif ids.dtype.kind == "S" and own_ids.dtype.kind != "S":
            own_ids = own_ids.astype("S")
            order = np.argsort(own_ids)
            own_ids, global_ids = own_ids[order], global_ids[order]
        place = np.minimum(np.searchsorted(own_ids, ids), len(own_ids) - 1)
        return np.where(own_ids[place] == ids, global_ids[place], -1)
