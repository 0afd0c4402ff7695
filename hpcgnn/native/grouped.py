"""Products of groups of rows with a matrix each, also of weighed sums of rows. n rows, G groups, I input width, O
output width; S source rows, P lists of E edges, H heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import check_index, compute_backend, on_host
from hpcgnn.native.products import are_rounded, multiply
from hpcgnn.native.relabel import transpose_index, unique_relabel
from hpcgnn.native.rows import gather_rows
from hpcgnn.native.segment import EdgeLists
from hpcgnn.native.workspace import empty_rows

PIECE_BYTES = 4 << 20  # of the sums that exist at a time: they stay in the cache


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, begin, weight):
        rows, weight = rows.contiguous(), weight.contiguous()
        ctx.save_for_backward(rows, begin, weight)
        out = empty_rows(rows, rows.shape[0], weight.shape[2])
        kernels, execution = compute_backend(rows)
        kernels.grouped_linear(begin, rows, weight, out, execution)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        rows, begin, weight = ctx.saved_tensors
        grad_rows = empty_rows(rows, *rows.shape) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[2] else None
        kernels, execution = compute_backend(rows)
        kernels.grouped_linear_backward(begin, rows, weight, gradient.contiguous(), grad_rows, grad_weight, execution)
        return grad_rows, None, grad_weight


def grouped_linear(rows: torch.Tensor, begin: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rows [n, I] times a matrix a group, [n, O]: group g, rows begin[g] to begin[g + 1], meets weight[g] of weight
    [G, I, O]. begin [G + 1] int64 on the host. One native call on the CPU in float32 and float64, else a product a
    group."""
    if on_host(rows) and rows.dtype in (torch.float32, torch.float64) and not are_rounded():
        return _GroupedLinear.apply(rows, begin, weight)
    return grouped_linear_reference(rows, begin, weight)


def grouped_linear_reference(rows, begin, weight):
    """grouped_linear in plain torch, for any device."""
    pieces = rows.split((begin[1:] - begin[:-1]).tolist())
    return torch.cat([multiply(piece, matrix) for piece, matrix in zip(pieces, weight, strict=True)])


def can_sum_first(rows: torch.Tensor) -> bool:
    """Whether ``summed_linear`` takes these rows: on the CPU, in float32 or float64, with products not rounded."""
    return on_host(rows) and rows.dtype in (torch.float32, torch.float64) and not are_rounded()


class _Group:
    """The lists first .. last - 1 of a group, which meet matrix ``number``. indptr and edges: of all lists. ``unique``
    and ``place`` [e]: the different sources and the place of each edge's, where the sources are multiplied, since they
    are fewer than the lists; else None."""

    def __init__(self, number: int, first: int, last: int, lists: EdgeLists):
        self.number, self.first, self.last = number, first, last
        self.begin, self.end = int(lists.indptr[first]), int(lists.indptr[last])
        self.source = lists.source[self.begin : self.end]
        self.indptr = lists.indptr[first : last + 1] - self.begin
        unique, place = unique_relabel(self.source.numpy())
        is_fewer = len(unique) < last - first
        self.unique: Any = torch.from_numpy(unique) if is_fewer else None
        self.place: Any = torch.from_numpy(place).long() if is_fewer else None

    def pieces(self, step: int) -> Iterator[tuple[slice, slice, torch.Tensor]]:
        """Divide the lists: which ones, their edges within the group, and the indptr of a piece."""
        for first in range(0, self.last - self.first, step):
            indptr = self.indptr[first : first + step + 1]
            edges = slice(int(indptr[0]), int(indptr[-1]))
            yield slice(self.first + first, self.first + first + len(indptr) - 1), edges, indptr - indptr[0]


class _SummedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, matrices, groups):
        rows, weight, matrices = rows.contiguous(), weight.contiguous(), matrices.contiguous()
        heads, threads, step = weight.shape[1], torch.get_num_threads(), _lists_at_once(rows, weight)
        out = empty_rows(rows, groups[-1].last if groups else 0, matrices.shape[2])
        memory = empty_rows(rows, heads * step, rows.shape[1])
        for group in groups:
            matrix, of_group = matrices[group.number], weight[group.begin : group.end]
            if group.unique is not None:
                values = gather_rows(rows, group.unique) @ matrix
                to = out[group.first : group.last]
                _native.segment_sum(group.indptr, group.place, None, values, of_group, to, threads)
                continue
            of_heads = _by_head(matrix, heads)
            for lists, edges, indptr in group.pieces(step):
                sums = _head_sums(rows, of_group[edges], group.source[edges], indptr, memory)
                out[lists].unflatten(1, (heads, -1)).copy_(torch.bmm(sums, of_heads).transpose(0, 1))
        ctx.groups = groups
        ctx.save_for_backward(rows, weight, matrices)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        rows, weight, matrices = ctx.saved_tensors
        gradient = gradient.contiguous()
        grad_rows = torch.zeros_like(rows) if ctx.needs_input_grad[0] else None
        grad_weight, grad_matrices = torch.empty_like(weight), torch.zeros_like(matrices)
        step = _lists_at_once(rows, weight)
        memory = [empty_rows(rows, weight.shape[1] * step, rows.shape[1]) for _ in range(2)]
        for group in ctx.groups:
            of_group, edges = weight[group.begin : group.end], slice(group.begin, group.end)
            tensors = rows, of_group, matrices[group.number], gradient
            outputs = grad_rows, grad_weight[edges], grad_matrices[group.number]
            if group.unique is not None:
                _values_backward(group, *tensors, *outputs)
            else:
                _sums_backward(group, step, memory, *tensors, *outputs)
        return grad_rows, grad_weight, grad_matrices, None


def _lists_at_once(rows, weight) -> int:
    """Return how many lists' sums exist at a time."""
    return max(64, PIECE_BYTES // max(1, weight.shape[1] * rows.shape[1] * rows.element_size()))


def _by_head(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Copy the shares of the heads of rows [n, O] one behind the other [H, n, O / H]."""
    return rows.unflatten(1, (heads, -1)).transpose(0, 1).contiguous()


def _of_heads(memory, heads: int, count: int) -> torch.Tensor:
    """Take the begin of memory [H * most, I] for rows of the heads [H, count, I]."""
    return memory[: heads * count].view(heads, count, memory.shape[1])


def _head_sums(rows, weight, source, indptr, memory) -> torch.Tensor:
    """Sum the rows of the entries of lists, weighed for each head [H, n, I], into ``memory``."""
    sums = _of_heads(memory, weight.shape[1], len(indptr) - 1)
    _native.head_sums(indptr, source, rows, weight, sums, torch.get_num_threads())
    return sums


def _sums_backward(
    group: _Group, step: int, memory, rows, weight, matrix, gradient, grad_rows, grad_weight, grad_matrix
) -> None:
    """Form gradients where sums are multiplied; the sums are formed again, piece by piece."""
    threads, heads = torch.get_num_threads(), weight.shape[1]
    of_heads = _by_head(matrix, heads)
    grad_heads = torch.zeros_like(of_heads.mT, memory_format=torch.contiguous_format)
    for lists, edges, indptr in group.pieces(step):
        source, passed = group.source[edges], _by_head(gradient[lists], heads)
        sums = _head_sums(rows, weight[edges], source, indptr, memory[0])
        grad_sums = torch.bmm(passed, of_heads.mT, out=_of_heads(memory[1], heads, passed.shape[1]))
        grad_heads.baddbmm_(passed.mT, sums)
        _native.head_products(indptr, source, grad_sums, rows, grad_weight[edges], threads)
        if grad_rows is not None:
            places, entry = transpose_index(source.to(torch.int32).numpy(), len(rows))
            entry = torch.from_numpy(entry)
            segment = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())[entry]
            places = torch.from_numpy(places)
            _native.add_head_rows(places, segment, entry, grad_sums, weight[edges], grad_rows, threads)
    grad_matrix.unflatten(1, (heads, -1)).copy_(grad_heads.permute(2, 0, 1))


def _values_backward(group: _Group, rows, weight, matrix, gradient, grad_rows, grad_weight, grad_matrix) -> None:
    """Form gradients where sources are multiplied."""
    passed, threads = gradient[group.first : group.last], torch.get_num_threads()
    sources = gather_rows(rows, group.unique)
    values, lists = sources @ matrix, EdgeLists(group.indptr, group.place, len(sources))
    _native.edge_products(group.indptr, group.place, passed, values, grad_weight, threads)
    back = lists.transposed
    _native.segment_sum(back.indptr, back.destination, back.edge, passed, weight, values, threads)
    torch.mm(sources.t(), values, out=grad_matrix)
    if grad_rows is not None:
        grad_rows.index_add_(0, group.unique, values @ matrix.t())


def summed_linear(
    rows: torch.Tensor, weight: torch.Tensor, matrices: torch.Tensor, lists: EdgeLists, numbers, counts
) -> torch.Tensor:
    """Weighed sums of sources' rows, times a matrix for each group of lists: [P, O]. The result is the same as
    segment_sum(rows @ matrix, lists of the group, weight), group by group.

    rows [S, I]; weight [E, H], one for each of H equal shares of the output columns; lists: P lists, in order of their
    groups; numbers, counts: of each group, its matrix among matrices [G, I, O], and its lists. Whichever are fewer, the
    lists or their different sources, are multiplied. Only rows, weight and matrices are kept for backward. On the CPU,
    in float32 and float64 (``can_sum_first``).
    """
    check_index("summed_linear", lists.source, len(rows))
    groups, first = [], 0
    for number, count in zip(numbers, counts, strict=True):
        groups += [_Group(number, first, first + count, lists)] if count else []
        first += count
    return _SummedLinear.apply(rows, weight, matrices, groups)
