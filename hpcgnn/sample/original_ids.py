"""Original ids of nodes, as the source files had them, to global ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.store.partition import TemporalPartition


class OriginalIds:
    """The nodes of one type, by original id; every rank knows its own."""

    def __init__(self, partition: TemporalPartition, node_type: str, world: World):
        base = partition.book.type_base()
        kind = partition.book.node_types.index(node_type)
        local = np.flatnonzero((partition.flat_row >= base[kind]) & (partition.flat_row < base[kind + 1]))
        ids = partition.node_ids[node_type]
        order = np.argsort(ids, kind="stable")
        self._ids, self._global_ids = ids[order], partition.book.local_to_global(world.rank)[local][order]
        self._world = world

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Collective. Global ids [n] of the ids [n] (integers, bytes or text), the same on all ranks; -1 where no node
        has one. Integers match bytes and text that spell them."""
        wanted = np.char.encode(ids, "utf-8") if ids.dtype.kind == "U" else ids
        return self._world.reduce_array(self._find_own(wanted), "max")

    def find_for_first(self, ids: np.ndarray | Any) -> np.ndarray | Any:
        """Collective. The same for ids that rank 0 alone brings and asks for, however often each; None elsewhere."""
        unique = inverse = None
        if self._world.rank == 0:
            unique, inverse = np.unique(ids, return_inverse=True)
        found = self.find(self._world.broadcast(unique))
        return None if inverse is None else found[inverse]

    def _find_own(self, wanted: np.ndarray) -> np.ndarray:
        known, owned = self._ids, self._global_ids
        if len(known) == 0:
            return np.full(len(wanted), -1, np.int64)
        if wanted.dtype.kind != "S" and known.dtype.kind == "S":
            wanted = wanted.astype("S")
        elif wanted.dtype.kind == "S" and known.dtype.kind != "S":
            known = known.astype("S")
            order = np.argsort(known)
            known, owned = known[order], owned[order]
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[place] == wanted, owned[place], -1)
