"""Products of numbers rounded to bfloat16, or through TF32, are near those in float32; nothing else is rounded."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import snapshot_runs
import torch
import training_runs
from mpi4py import MPI
from test_resident import emulated  # noqa: F401

from data_tools.partition.command import partition
from hpcgnn.native import products
from hpcgnn.native.products import add_product, choose_products, linear, multiply, product
from hpcgnn.snapshots.model.recurrent import GatedCell, affine, perceptron

pytestmark = pytest.mark.serial
NEAR = {"bf16": 2e-2, "tf32": 2e-3}  # of the largest value


@pytest.fixture(autouse=True)
def float32_again():
    """Later tests multiply as ever."""
    yield
    choose_products("float32", torch.device("cpu"), torch.float32)


GROWTH = """
from hpcgnn import environment
environment.set_defaults()
import torch
from hpcgnn.native.products import linear

def mebibytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024

torch.set_num_threads(1)
weight = torch.randn(64, 100, requires_grad=True)
for step in range(400):
    linear(torch.randn(200 + step * 7 % 1801, 100, requires_grad=True), weight).sum().backward()
    if step == 99:
        before = mebibytes()
print(mebibytes() - before)
"""


def test_products_of_ever_new_shapes_keep_no_memory():
    """The first hundred fill what is kept."""
    environment = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    result = subprocess.run([sys.executable, "-c", GROWTH], env=environment, capture_output=True, text=True, check=True)
    assert int(result.stdout) < 50


def layers(rows, weight, bias, output, cell):
    """Everything that multiplies rows [n, I] with weights."""
    given = affine(rows, weight.repeat(1, 3)[:, : 3 * rows.shape[1]])
    return [
        linear(rows, weight.t(), bias), multiply(rows, weight), affine(rows, weight, bias, rectify=True),
        perceptron(rows, weight, output), cell(given, rows),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "has_units", "slow"),
    [("float32", False, False), ("tf32", True, True), ("bf16", True, False), ("bf16", False, True)],
)
def test_products_without_units_are_slow(monkeypatch, kind, has_units, slow):
    """A run that asks for them begins with a warning; on a GPU all have units."""
    monkeypatch.setattr(products, "_has_bfloat16_units", lambda: has_units)
    assert products.is_slow(kind, torch.device("cpu")) == slow
    assert not products.is_slow(kind, torch.device("cuda"))


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_products_are_near_those_in_float32(device, kind):
    torch.manual_seed(1)
    output, cell = torch.nn.Linear(20, 4), GatedCell(20)
    values = [torch.randn(50, 20), torch.randn(20, 20) / 5, torch.randn(20)]

    def run(kind):
        target = torch.device(device.target)
        choose_products(kind, target, torch.float32)
        leaves = [device.put(value).requires_grad_() for value in values]
        found = layers(*leaves, output.to(target), cell.to(target))
        sum(some.square().sum() for some in found).backward()
        return [some.detach() for some in found] + [leaf.grad for leaf in leaves]

    with device:
        expected, found = run("float32"), run(kind)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).abs().max()) < NEAR[kind] * float(other.abs().max())
        assert kind == "tf32" or not torch.equal(one, other)


@pytest.mark.parametrize("has_units", [True, False])
def test_products_of_bfloat16_are_rounded_sums_of_rounded_factors(monkeypatch, has_units):
    """On processors that multiply bfloat16 numbers, and on others."""
    monkeypatch.setattr(products, "_has_bfloat16_units", lambda: has_units)
    torch.manual_seed(2)
    left, right = torch.randn(70, 300), torch.randn(300, 90)
    choose_products("bf16", torch.device("cpu"), torch.float32)
    expected = left.bfloat16().double() @ right.bfloat16().double()
    size = left.bfloat16().abs().double() @ right.bfloat16().abs().double()  # what float32 sums are rounded by
    bound = expected.abs() * 2**-8 + size * 2**-20
    for found in (product(left, right), add_product(torch.ones(70, 90), left, right) - 1, multiply(left, right)):
        assert ((found.double() - expected).abs() <= bound + 2**-22).all()


def temporal_losses(folder, **changes) -> list[float]:
    config = training_runs.make_config(train__precision="float32", **changes)
    return training_runs.record_epoch(MPI.COMM_SELF, folder / "parts", config, steps=8).losses


def snapshot_losses(folder, **changes) -> list[float]:
    changes = {"inputs__lags": 2, "model__kind": "tgcn", "train__precision": "float32"} | changes
    return snapshot_runs.run_epochs(MPI.COMM_SELF, folder / "parts", snapshot_runs.make_config(**changes))[0][:, 0]


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_the_host_rounds_as_a_device_does(kind):
    """Products of few numbers, to the last bit: these have one order."""
    torch.manual_seed(2)
    rows, weight = torch.randn(40, 2), torch.randn(2, 30)
    choose_products(kind, torch.device("cpu"), torch.float32)
    low = [_by_hand(values.numpy(), kind).astype(np.float64) for values in (rows, weight)]
    expected = (low[0] @ low[1]).astype(np.float32)
    assert np.array_equal(multiply(rows, weight).numpy(), _by_hand(expected, kind) if kind == "bf16" else expected)


@pytest.mark.parametrize("kind", ["float32", "bf16", "tf32"])
@pytest.mark.parametrize("shape", [(5, 0), (2, 5, 0), (0, 3)])
def test_rows_of_nothing_are_the_bias(kind, shape):
    """As those of nodes without features."""
    choose_products(kind, torch.device("cpu"), torch.float32)
    rows, weight, bias = (torch.randn(size, requires_grad=True) for size in (shape, (7, shape[-1]), 7))
    out = linear(rows, weight, bias)
    assert torch.equal(out, bias.expand(*shape[:-1], 7))
    out.sum().backward()
    assert bias.grad.tolist() == [out.numel() / 7] * 7
    assert rows.grad.shape == rows.shape


def _by_hand(values: np.ndarray, kind: str) -> np.ndarray:
    """Rounded to 7 bits of mantissa, halves to even, or to 10, halves away from zero."""
    fraction, exponent = np.frexp(values.astype(np.float64))
    scale = 2.0 ** (8 if kind == "bf16" else 11)
    scaled = fraction * scale
    rounded = np.rint(scaled) if kind == "bf16" else np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    return np.ldexp(rounded / scale, exponent).astype(np.float32)


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_losses_on_the_host_are_near_those_in_float32(tmp_path, kind):
    partition(training_runs.bipartite(tmp_path / "graph.h5"), tmp_path / "parts", 4, "random")
    found, expected = temporal_losses(tmp_path, train__matmul=kind), temporal_losses(tmp_path)
    np.testing.assert_allclose(found, expected, rtol=0.02 if kind == "bf16" else 0.002)
    assert not np.array_equal(found, expected)


@pytest.mark.parametrize("kind", ["temporal", "snapshots"])
def test_losses_are_near_those_in_float32(tmp_path, emulated, kind):  # noqa: F811
    if kind == "temporal":
        partition(training_runs.bipartite(tmp_path / "graph.h5"), tmp_path / "parts", 4, "random")
        losses = temporal_losses
    else:
        snapshot_runs.make_parts(MPI.COMM_SELF, tmp_path)
        losses = snapshot_losses
    found, expected = losses(tmp_path, train__matmul="bf16"), losses(tmp_path)
    np.testing.assert_allclose(found, expected, rtol=0.02)
    assert not np.array_equal(found, expected)


def test_float64_is_not_rounded(tmp_path, emulated):  # noqa: F811
    with pytest.raises(ValueError, match=r"needs train\.precision float32"):
        choose_products("bf16", torch.device("cpu"), torch.float64)
