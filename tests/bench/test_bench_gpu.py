"""Timing kernels of a device: every kernel is there, on host threads here; exchanges; without a device it says so."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from test_native_cuda import OPERATIONS

from hpcgnn.bench import gpu
from hpcgnn.bench.__main__ import main
from hpcgnn.bench.kernels import Case, Problems, ProblemSizes
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.native import dispatch

SMALL = ProblemSizes(num_nodes=300, entries=3000, roots=50, slots=4, unique=80, width=8)
# Called only with others: what counts for them, what goes backward, the scratch that is asked for.
WITHIN = {"count_neighbors", "edge_products", "decay_keep"}


@pytest.fixture
def emulated():
    """Meanwhile CPU tensors are a device's."""
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    with dispatch.emulation():
        yield


@pytest.mark.serial
def test_every_kernel_is_timed(emulated):
    result = gpu.measure(SMALL, torch.device("cpu"), repeat=2, copy=1 << 16, product=16, flush=1 << 10)
    timed = {name for name in OPERATIONS if not name.endswith(("bytes", "_backward")) and name not in WITHIN}
    assert timed | {"attention_backward"} <= set(result["kernels"])
    assert all(case["seconds"] > 0 and case["bound"] > 0 for case in result["kernels"].values())
    text = gpu.table(json.loads(json.dumps(result)) | {"device": "host threads", "ranks": 1})
    assert all(f"{name} " in text for name in timed)


@pytest.mark.serial
def test_bytes_are_those_of_reads_and_writes(emulated):
    """Of a gather: index, rows in whole sectors, result."""
    cases = {case.name: case for case in Problems(SMALL, torch.device("cpu")).cases()}
    assert cases["gather_rows"].bytes == 200 * (8 + 32 + 32)
    assert cases["random_integers"].bytes == 50 * 8 * 5


@pytest.mark.serial
def test_share_is_that_of_the_larger_bound():
    case, clock = Case("idle", 100.0, 50.0, lambda: None), lambda call: 4.0
    assert gpu.time_case(case, clock, {"bandwidth": 100.0, "flops": 25.0})["share"] == 0.5
    assert gpu.time_case(case, clock, {"bandwidth": 25.0, "flops": 25.0})["share"] == 1.0


@pytest.mark.several_ranks
def test_exchanges_are_timed(comm):
    assert gpu.time_exchange(World(CommConfig(device="cpu"), comm), 1 << 12, 3) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_device_it_says_so(comm):
    with pytest.raises(DistributedError, match="needs a CUDA device"):
        main(World(CommConfig(device="cpu"), comm), ["gpu"])


def test_emulated_without_a_device(emulated, comm, mpi_tmp_path):
    """Kernels on host threads, exchanges between the ranks' own memory."""
    small = [f"--{name}={value}" for name, value in asdict(SMALL).items()]
    out = mpi_tmp_path / "gpu.json"
    options = ["gpu", "--device", "emulated", "--repeat", "1", "--exchange", "4096", f"--out={out}", *small]
    assert main(World(CommConfig(device="cpu"), comm), options) == 0
    result = json.loads(out.read_text())
    assert (result["device"], result["ranks"]) == ("host threads", comm.size)
    assert result["sizes"] == asdict(SMALL)
    assert result.get("exchanges", {}).keys() == ({"host"} if comm.size > 1 else set())


def test_bad_sizes_are_refused(comm):
    with pytest.raises((DistributedError, ValueError), match="--roots must be at least 1"):
        main(World(CommConfig(device="cpu"), comm), ["gpu", "--roots", "0"])
