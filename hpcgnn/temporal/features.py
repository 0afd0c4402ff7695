"""Features of nodes: fetched with the plans, ahead of the steps, as they do not depend on weights; rows of the ranks of
a node are read where they lie.

n rows of a rank, F features, U wanted nodes.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.route import Route
from hpcgnn.comm.shared import NodeColumns, has_neighbors, share_columns
from hpcgnn.comm.world import World
from hpcgnn.native.workspace import empty_like_rows


class NodeFeatures:
    """Features [n, F] of the nodes whose memory a rank keeps, in the rows of that memory. Collective to create, to
    fetch and to close."""

    def __init__(self, table: torch.Tensor, world: World, is_replicated: bool):
        """table: on the host; is_replicated: every rank has the rows of all nodes."""
        self._table = table
        self._shared: NodeColumns | None = None
        if not is_replicated and has_neighbors(world):
            self._shared = share_columns(world, [((*table.shape,), table.dtype)])
        if self._shared is not None:
            self._table = self._shared.own[0].copy_(table)
            self._shared.publish()

    def fetch(self, owner: np.ndarray, local: np.ndarray, route: Route) -> torch.Tensor:
        """Collective. Fetch the rows [U, F] that lie at ``local`` rows [U] of their owners [U]; those of other nodes
        come over ``route``, whose wanted ids they are."""
        if self._shared is None:
            return route.pull(self._table)[0]
        near = self._shared.tables[0]
        index = near.first[owner]
        is_near = index >= 0
        index += local
        if not (near.first < 0).any():
            return native.gather_rows(near.table, torch.from_numpy(index))
        far = route.restrict(~is_near, near.first[route.requesters()] < 0)
        (rows,) = far.pull(self._table)
        out = empty_like_rows(rows, len(owner))
        native.scatter_rows(out, torch.from_numpy(np.flatnonzero(~is_near)), rows)
        gathered = native.gather_rows(near.table, torch.from_numpy(index[is_near]))
        native.scatter_rows(out, torch.from_numpy(np.flatnonzero(is_near)), gathered)
        return out

    def close(self) -> None:
        """Collective. Free what ranks share; nothing can be fetched any more."""
        if self._shared is not None:
            self._table = self._table[:0].clone()
            self._shared.close()
            self._shared = None
