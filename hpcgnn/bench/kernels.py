"""Problems for the kernels of a device, like the problems of a training step, with the least bytes and flops of each.

Bytes count every input that a call reads and every output that it writes once. Random reads count in sectors of 32
bytes, as the device's memory moves them. Flops count multiplications and additions of attention, which alone computes
much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.native import AttentionPlan, EdgeLists, Random, Stream
from hpcgnn.native.relabel import Scratch, unique_on_device

SECTOR = 32
KEY = Random(1, Stream.SAMPLE)


@dataclass(frozen=True, slots=True)
class ProblemSizes:
    """Sizes of the problems: nodes and their entries of history; roots with slots neighbors each; unique nodes of a
    step; width of rows; heads of attention."""

    num_nodes: int = 1_000_000
    entries: int = 50_000_000
    roots: int = 200_000
    slots: int = 10
    unique: int = 1_000_000
    width: int = 128
    heads: int = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A problem for a kernel. run: calls the kernel once."""

    name: str
    bytes: float
    flops: float
    run: Callable[[], object]


def sectors(row_bytes: int) -> int:
    """Return the bytes that a random read of a row moves."""
    return -(-row_bytes // SECTOR) * SECTOR


class Problems:
    """The inputs of all cases, on one device."""

    def __init__(self, sizes: ProblemSizes, device: torch.device, seed: int = 0):
        self.sizes, self.device = sizes, device
        self._draw = torch.Generator(device).manual_seed(seed)
        degree = np.random.default_rng(seed).multinomial(sizes.entries, np.full(sizes.num_nodes, 1 / sizes.num_nodes))
        self.indptr = torch.from_numpy(np.r_[0, np.cumsum(degree)]).to(device)
        self.time = torch.arange(sizes.entries, device=device)
        self.roots = self.integers(sizes.num_nodes, sizes.roots)
        self.until = torch.full_like(self.roots, sizes.entries)
        self.ids = self.integers(sizes.unique, sizes.roots * sizes.slots)
        self.table = self.numbers(sizes.unique, sizes.width)
        self.rows = self.numbers(len(self.ids), sizes.width)

    def integers(self, limit: int, count: int) -> torch.Tensor:
        """Draw [count] int64 below ``limit``."""
        return torch.randint(limit, (count,), generator=self._draw, device=self.device)

    def numbers(self, *shape: int) -> torch.Tensor:
        """Draw standard normal float32."""
        return torch.randn(shape, generator=self._draw, device=self.device)

    def cases(self) -> Iterator[Case]:
        """Iterate over all cases; inputs that only one of them needs are made for it."""
        yield from self.sampling()
        yield from self.planning()
        yield from self.moving()
        yield from self.lists()
        yield from self.attention()

    def sampling(self) -> Iterator[Case]:
        """Make the cases of samplers and random numbers."""
        s, graph = self.sizes, (self.indptr, self.time, self.time)
        search = SECTOR * np.log2(max(2, s.entries / s.num_nodes))  # one sector a step of the binary search
        root, out = 3 * 8 + 2 * SECTOR + search, 8 * s.slots + 4
        yield Case(
            "sample_recent", s.roots * (root + out), 0,
            lambda: native.sample_recent(graph, self.roots, self.until, s.slots),
        )  # fmt: skip
        yield Case(
            "sample_uniform", s.roots * (root + 8 + out), 0,
            lambda: native.sample_uniform(graph, self.roots, self.until, self.roots, s.slots, KEY),
        )  # fmt: skip
        yield Case(
            "sample_neighbors", s.roots * (2 * (8 + 2 * SECTOR) + 3 * 8 + SECTOR + 8 * s.slots), 0,
            lambda: native.sample_neighbors(self.indptr, self.roots, self.node_identity(), s.slots, KEY),
        )  # fmt: skip
        place = self.integers(s.entries, s.roots * s.slots).view(s.roots, s.slots)
        yield Case(
            "temporal_reply", s.roots * (8 + s.slots * (8 + 2 * SECTOR + 2 * 8)), 0,
            lambda: native.temporal_reply(self.time, self.time, None, place, self.until),
        )  # fmt: skip
        yield Case(
            "random_integers", s.roots * 8 * (1 + s.slots), 0,
            lambda: native.random_integers(KEY, self.roots, s.slots, s.num_nodes),
        )  # fmt: skip
        yield Case(
            "dropout_mask", s.roots * (8 + 4 * s.width), 0,
            lambda: native.dropout_mask(KEY, self.roots, s.width, 0.1, torch.float32),
        )  # fmt: skip

    def node_identity(self) -> torch.Tensor:
        """Return identities [nodes]; any numbers will do."""
        return self.time[: self.sizes.num_nodes] if self.sizes.entries >= self.sizes.num_nodes else self.indptr[:-1]

    def planning(self) -> Iterator[Case]:
        """Make the cases of relabeling, winners and transposes."""
        n, unique = len(self.ids), self.sizes.unique
        scratch, index = Scratch(), self.ids.int()
        yield Case("unique_relabel", n * (8 + 4 + SECTOR) + 8 * unique, 0,
                   lambda: unique_on_device(self.ids, scratch))  # fmt: skip
        yield Case("last_event", n * (8 + 8 + 1 + SECTOR), 0,
                   lambda: native.last_event(self.ids, self.ids, scratch))  # fmt: skip
        yield Case("transpose_index", n * (4 + 8) + 8 * unique, 0,
                   lambda: native.transpose_index(index, unique, False, scratch))  # fmt: skip

    def moving(self) -> Iterator[Case]:
        """Make the cases that gather, scatter and sum rows."""
        n, row, unique = len(self.ids), 4 * self.sizes.width, self.sizes.unique
        target, place = torch.empty_like(self.table), torch.randperm(unique, device=self.device)
        indptr, order = native.transpose_index(self.ids.int(), unique)
        yield Case("gather_rows", n * (8 + sectors(row) + row), 0, lambda: native.gather_rows(self.table, self.ids))
        yield Case("scatter_rows", unique * (8 + row + sectors(row)), 0,
                   lambda: native.scatter_rows(target, place, self.table))  # fmt: skip
        yield Case("segment_sum_rows", n * (8 + sectors(row)) + unique * (8 + row), 0,
                   lambda: native.segment_sum_rows(self.rows, indptr, order))  # fmt: skip
        row_of, bound = torch.arange(unique, device=self.device), self.table[:, 0].contiguous()
        yield Case("count_reaching", unique * (8 + row + 4 + 8), 0,
                   lambda: native.count_reaching(self.table, row_of, bound))  # fmt: skip

    def lists(self) -> Iterator[Case]:
        """Make the cases of edge lists, forward: sums, maxima, attention."""
        s, row, n = self.sizes, 4 * self.sizes.width, len(self.ids)
        lists = EdgeLists(torch.arange(s.roots + 1, device=self.device) * s.slots, self.ids, s.unique)
        source, target = self.numbers(s.unique, s.heads), self.numbers(s.roots, s.heads)
        moved = n * (8 + sectors(row)) + s.roots * (8 + row)
        yield Case("segment_sum", moved, 0, lambda: native.segment_sum(self.table, lists))
        yield Case("segment_max", moved + s.roots * 8 * s.width, 0, lambda: native.segment_max(self.table, lists))
        scores = n * (8 + sectors(4 * s.heads) + 4 * s.heads) + s.roots * 4 * s.heads
        yield Case("edge_attention", scores + moved + n * 4 * s.heads, 0,
                   lambda: native.graph_attention(self.table, source, target, lists))  # fmt: skip

    def attention(self) -> Iterator[Case]:
        """Make the cases of temporal attention without edge features, forward and backward."""
        s, row = self.sizes, 4 * self.sizes.width
        n, key = len(self.ids), 2 * s.width
        slot = self.ids.int().view(s.roots, s.slots)
        count = torch.full((s.roots,), s.slots, dtype=torch.int32, device=self.device)
        transpose = native.transpose_index(self.ids.int(), s.unique)
        plan = AttentionPlan(slot, count, self.ids.view_as(slot), slot[:, :1].contiguous(), *transpose)
        query = self.numbers(s.roots, s.heads, key).requires_grad_()
        node, phase = self.table.clone().requires_grad_(), torch.zeros(s.width, device=self.device)
        frequency = torch.logspace(0, -9, s.width, dtype=torch.float64, device=self.device)
        edge = self.numbers(s.roots, 0)
        call = (query, node, phase, edge, frequency, plan)
        read = n * (4 + 8 + sectors(row)) + s.roots * 4
        wide, weight = s.roots * s.heads * 4 * key, n * s.heads * 4
        forward = read + 2 * wide + weight
        out = native.temporal_attention(*call)
        gradient = torch.randn_like(out)
        yield Case("attention_forward", forward, 4 * n * s.heads * key, lambda: native.temporal_attention(*call))
        back = 2 * read + 3 * wide + 3 * weight + 8 * n + s.unique * (8 + row) + n * s.heads * sectors(row)
        yield Case("attention_backward", back, 6 * n * s.heads * key,
                   lambda: torch.autograd.grad(out, (query, node), gradient, retain_graph=True))  # fmt: skip
