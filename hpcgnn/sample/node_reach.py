"""Rows of any nodes at the ranks that name them, planned once, moved once.

w different nodes wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.route import Route
from hpcgnn.store.book import Book


@dataclass(frozen=True, slots=True)
class Reach:
    """A route to the wanted nodes, None on one rank: then places are rows of the table itself."""

    route: Route | None

    def bring(self, table: torch.Tensor, chain: HaloChain, channel: Channel) -> torch.Tensor:
        """Collective. Rows [w, D] of the owners' tables [n, D], with their gradients."""
        return table if self.route is None else chain.pull(self.route.over(channel), table)


def reach(
    wanted: list[np.ndarray], book: Book, channel: Channel, device: torch.device
) -> tuple[Reach, list[torch.Tensor]]:
    """Collective. The reach to all nodes among arrays of global ids, and the places of each array in what it brings."""
    if channel.size == 1:
        return Reach(None), [
            torch.from_numpy(book.locate(ids.ravel())[1].reshape(ids.shape)).to(device) for ids in wanted
        ]
    ids, place = np.unique(np.concatenate([ids.ravel() for ids in wanted]), return_inverse=True)
    pieces = np.split(place, np.cumsum([ids.size for ids in wanted])[:-1])
    places = [torch.from_numpy(at.reshape(ids.shape)).to(device) for at, ids in zip(pieces, wanted, strict=True)]
    return Reach(Route.plan(book, ids, channel).to(device)), places
