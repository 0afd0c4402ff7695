"""The draw of a static step on a device that holds the edges: for one rank.

U unique nodes so far of a type, E edges of a relation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.native import Random, Stream
from hpcgnn.native.dispatch import Uploads
from hpcgnn.nn.message_blocks import Adjacency, Block
from hpcgnn.sample.draw import Drawn, Groups, Steps, fanouts_by_hop
from hpcgnn.sample.graph_config import GraphSamplingConfig
from hpcgnn.sample.graph_neighbors import NeighborSampler


@dataclass(frozen=True, slots=True)
class ResidentLists:
    """A relation's in-edges: indptr [n + 1], identity [n], src [m] int64 rows of the source type; weight [m] uint32 and
    source_identity [m], or None."""

    indptr: torch.Tensor
    identity: torch.Tensor
    src: torch.Tensor
    weight: torch.Tensor | None
    source_identity: torch.Tensor | None


class UniqueNodes:
    """Unique rows of one type, in order of first occurrence, over several calls."""

    def __init__(self, device: torch.device):
        self.rows = torch.empty(0, dtype=torch.int64, device=device)

    def add(self, rows: torch.Tensor) -> torch.Tensor:
        """Position [k] int64 of every row [k] int64 among the unique ones, which those not seen join."""
        known = len(self.rows)
        self.rows, inverse = native.unique_relabel(torch.cat([self.rows, rows]))
        return inverse[known:].long()


class ResidentDraw:
    """As `hpcgnn.sample.draw.BlockSampler`: the same blocks, as tensors of the device."""

    def __init__(self, neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int, device: torch.device):
        self._partition, self._mode, self._config, self._seed = neighbors.partition, neighbors.mode, config, seed
        self.device, self._lists = device, _bring(neighbors, Uploads(device))
        self._base = neighbors.partition.book.type_base().tolist()

    def over(self, channel: Channel) -> ResidentDraw:
        """Itself: it asks nobody, and keeps nothing from step to step."""
        return self

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """As in Draw; places and wanted are tensors of the device."""
        groups: Groups = steps.groups(step)
        nodes = [UniqueNodes(self.device) for _ in self._base[1:]]
        stream, blocks = Stream.NEIGHBOR if steps.training else Stream.EVAL_NEIGHBOR, []
        places = [nodes[kind].add(self._put(ids) - self._base[kind]) for kind, ids in groups]
        for hop, fanouts in enumerate(fanouts_by_hop(self._config, self._partition.relations, steps.training)):
            frontier = [some.rows for some in nodes]
            relations = tuple(
                self._adjacency(number, frontier, nodes, fanout, stream, (step, steps.epoch, hop))
                for number, fanout in enumerate(fanouts) if fanout != 0
            )  # fmt: skip
            sizes = tuple(len(some.rows) for some in nodes)
            blocks.append(Block(relations, sizes, tuple(map(len, frontier)), self.device))
        wanted = [some.rows + base for some, base in zip(nodes, self._base, strict=False)]
        return Drawn(places, tuple(reversed(blocks)), wanted)

    def _adjacency(self, number: int, frontier, nodes: list[UniqueNodes], fanout: int, stream, at) -> Adjacency:
        relation, lists, (step, epoch, hop) = self._partition.relations[number], self._lists[number], at
        random = Random(self._seed, stream, step, epoch, hop, number)
        indptr, positions = native.sample_neighbors(
            lists.indptr, frontier[relation.dst_type], lists.identity, fanout, random, mode=self._mode,
            weight=lists.weight, source_identity=lists.source_identity,
        )  # fmt: skip
        source = nodes[relation.src_type].add(lists.src[positions])
        return Adjacency(number, relation.src_type, relation.dst_type, indptr, source)

    def _put(self, ids: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(ids, np.int64)).to(self.device)


def _bring(neighbors: NeighborSampler, upload: Uploads) -> list[ResidentLists]:
    partition, found = neighbors.partition, []
    base = partition.book.type_base()
    for relation, edges, lists in zip(partition.relations, partition.edges, neighbors.lists, strict=True):
        further = [None if some is None else upload(some) for some in (lists.weight, lists.source_identity)]
        src = upload(edges.src, torch.int64) - int(base[relation.src_type])
        found.append(ResidentLists(upload(lists.indptr), upload(lists.identity), src, *further))
    return found


def resident_bytes(neighbors: NeighborSampler) -> int:
    """Bytes that the edges take on the device."""
    partition, total = neighbors.partition, 0
    for edges, lists in zip(partition.edges, neighbors.lists, strict=True):
        columns = (lists.indptr, lists.identity, lists.weight, lists.source_identity)
        total += 8 * len(edges.src) + sum(column.nbytes for column in columns if column is not None)
    return total
