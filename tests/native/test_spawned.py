"""Processes of one's own beside kernels that ran on several threads (PyG #3565, dgl #1129)."""

import multiprocessing

import pytest
import torch

from hpcgnn import native

pytestmark = pytest.mark.serial


def gather(rows: torch.Tensor, index: torch.Tensor, answers) -> None:
    answers.put(native.gather_rows(rows, index).sum().item())


def test_a_child_that_is_started_by_spawn_runs_kernels():
    """A forked one has none of the parent's OpenMP threads; docs/library.md says so."""
    threads, rows = torch.get_num_threads(), torch.arange(400_000 * 8.0).view(400_000, 8) % 7
    torch.set_num_threads(2)
    index = torch.arange(0, 400_000, 2)
    expected = native.gather_rows(rows, index).sum().item()
    torch.set_num_threads(threads)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=gather, args=(rows, index, answers))
    child.start()
    assert answers.get(timeout=60) == expected == rows[::2].sum().item()
    child.join(60)
    assert child.exitcode == 0
