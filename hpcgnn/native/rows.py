"""Rows of tables: gather, scatter, sums over segments, counts."""

from __future__ import annotations

import math

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.dispatch import check_index, compute_backend
from hpcgnn.native.workspace import empty_like_rows


def gather_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """table[index] for int64 ``index``; a negative index gives a row of zeros. Not differentiable; see GatherRows."""
    check_index("gather_rows", index, len(table))
    out = empty_like_rows(table, index.shape[0])
    if out.numel():
        kernels, execution = compute_backend(table)
        kernels.gather_rows(_bytes(table), index, _bytes(out), execution)
    return out


def scatter_rows(table: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
    """table[index] = rows in place; indices unique, negative ones skipped. ValueError for rows that are not the
    table's, and for a table that is not contiguous."""
    if rows.dtype != table.dtype or rows.shape[1:] != table.shape[1:] or not table.is_contiguous():
        form = lambda of: f"{of.dtype} {list(of.shape)}"  # noqa: E731
        raise ValueError(f"scatter_rows takes rows of the table, which is contiguous: {form(rows)} and {form(table)}")
    check_index("scatter_rows", index, len(table))
    if rows.numel():
        kernels, execution = compute_backend(table)
        kernels.scatter_rows(_bytes(table), index, _bytes(rows.contiguous()), execution)


def segment_sum_rows(rows: torch.Tensor, indptr: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Sum of rows[order[indptr[s]:indptr[s + 1]]] for every segment s, in that order (deterministic). [segments,
    width]."""
    check_index("segment_sum_rows", order, len(rows), least=0)
    out = torch.empty((indptr.shape[0] - 1, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    if out.numel():
        kernels, execution = compute_backend(rows)
        kernels.segment_sum_rows(rows.contiguous(), indptr, order, out, execution)
    return out


def count_reaching(scores: torch.Tensor, row: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Count, for each threshold [n], how many of the scores [rows, c] in its row [n] (int64) are above it, and add how
    many are at least as high: [n] int64. Thresholds have the dtype of the scores, float32 or float64."""
    check_index("count_reaching", row, len(scores))
    out = torch.zeros(len(row), dtype=torch.int64, device=scores.device)
    if scores.shape[1] and len(row):
        kernels, execution = compute_backend(scores)
        kernels.count_reaching(scores.contiguous(), row, threshold, out, execution)
    return out


class GatherRows(torch.autograd.Function):
    """Differentiable row gather; the gradient is summed through the transposed index (deterministic)."""

    @staticmethod
    def forward(ctx, table, index, indptr, order):
        """index [n] int64, negative ones give rows of zeros; (indptr, order): transpose_index(index, len(table))."""
        ctx.save_for_backward(indptr, order)
        return gather_rows(table, index)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return segment_sum_rows(gradient, *ctx.saved_tensors), None, None, None


def _bytes(rows: torch.Tensor) -> torch.Tensor:
    """A contiguous [n, ...] tensor as [n, bytes of a row] uint8, without a copy."""
    width = math.prod(rows.shape[1:])
    if rows.numel() == 0:  # its strides may be anything
        return rows.new_empty((rows.shape[0], width * rows.element_size()), dtype=torch.uint8)
    return rows.reshape(rows.shape[0], width).view(torch.uint8)
