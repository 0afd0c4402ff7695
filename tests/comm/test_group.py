"""Ranks without torch: what they exchange arrives by source in order, in one round or in many."""

import subprocess
import sys

import numpy as np
import pytest

from hpcgnn.comm.group import Group

PAIR = np.dtype([("id", "i8"), ("value", "f4", (2,))])


def count(source: int, peer: int) -> int:
    """Rows of a pair of ranks; rank 0 sends nothing."""
    return (source * (3 * peer + 2)) % 7


def message(source: int, peer: int, dtype: np.dtype, tail: tuple[int, ...]) -> np.ndarray:
    """What ``source`` sends to ``peer``."""
    rows = np.zeros((count(source, peer), *tail), dtype)
    rows.reshape(-1).view(np.uint8)[:] = np.arange(rows.nbytes) + 31 * source + 7 * peer
    return rows


@pytest.mark.parametrize("dtype", [np.int64, np.float32, bool, "S3", PAIR], ids=str)
@pytest.mark.parametrize("tail", [(), (3,), (0,)])
@pytest.mark.parametrize("max_bytes", [1 << 30, 40])
def test_rows_arrive_by_source_in_order(comm, dtype, tail, max_bytes):
    group, dtype = Group(comm, max_bytes), np.dtype(dtype)
    sent = [message(group.rank, peer, dtype, tail) for peer in range(group.size)]
    rows, counts = group.exchange(np.concatenate(sent), np.array([len(rows) for rows in sent]))
    expected = [message(source, group.rank, dtype, tail) for source in range(group.size)]
    assert counts.tolist() == [len(rows) for rows in expected]
    assert rows.dtype == dtype
    assert rows.tobytes() == np.concatenate(expected).tobytes()


@pytest.mark.serial
def test_partitioning_loads_no_torch():
    modules = "data_tools.partition.command data_tools.verify.command".split()
    program = f"import sys, hpcgnn.comm.foreign, {', '.join(modules)}\n"
    program += "from data_tools.team import Ranks\nRanks()\nassert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
