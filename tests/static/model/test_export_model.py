"""Exported weights, moved into layers of PyTorch Geometric by the table in docs/runs.md, give what predict writes."""

from __future__ import annotations

import json
import runpy

import numpy as np
import pytest
import torch
from places import REPOSITORY
from random_graphs import write_graph
from run_commands import run_caught
from safetensors.torch import load_file
from static_runs import make_static_parts, static_config
from training_runs import on_rank_0

EXAMPLE = REPOSITORY / "examples" / "exported_sage.py"
NODES, WIDTH = 60, 5


def graph(path, relations: int):
    """One node type without loops; sources by destination, and features."""
    rng = np.random.default_rng(2)
    columns = {"feat": rng.standard_normal((NODES, WIDTH)).astype(np.float32), "label": rng.integers(0, 3, NODES),
               "split": rng.choice([0, 0, 1, 2], NODES).astype(np.int8)}  # fmt: skip
    ends = []
    for _ in range(relations):
        dst = rng.integers(0, NODES - 5, 240)
        ends.append(np.stack([(dst + rng.integers(1, NODES, 240)) % NODES, dst]))
    edges = {("node", f"r{number}", "node"): {"src": src, "dst": dst} for number, (src, dst) in enumerate(ends)}
    write_graph(path, {"node": columns}, edges, "static")
    return columns["feat"], ends


def sage(nn, weights, number):
    product, bias = (weights[f"layers.{number}.product.{name}"] for name in ("weight", "bias"))
    width = product.shape[1] // 2
    conv = nn.SAGEConv(width, len(product)).to(product.dtype)
    conv.lin_r.weight.data, conv.lin_l.weight.data, conv.lin_l.bias.data = product[:, :width], product[:, width:], bias
    return lambda rows, index, kind: conv(rows, index)


def gcn(nn, weights, number):
    product = weights[f"layers.{number}.product.weight"]
    conv = nn.GCNConv(*reversed(product.shape)).to(product.dtype)
    conv.lin.weight.data, conv.bias.data = product, weights[f"layers.{number}.product.bias"]
    return lambda rows, index, kind: conv(rows, index)


def gat(nn, weights, number):
    weight, source, target, bias = (
        weights[f"layers.{number}.{name}"] for name in ("weight", "source", "target", "bias")
    )
    heads, width = source.shape
    conv = nn.GATConv(len(weight), width, heads, concat=len(bias) == heads * width).to(weight.dtype)
    conv.lin.weight.data, conv.bias.data = weight.T.contiguous(), bias
    conv.att_src.data, conv.att_dst.data = source[None], target[None]
    return lambda rows, index, kind: conv(rows, index)


def rgcn(nn, weights, number):
    matrices, own = weights[f"layers.{number}.weights.matrices"], weights[f"layers.{number}.own.weight"]
    conv = nn.RGCNConv(*matrices.shape[1:], len(matrices)).to(matrices.dtype)
    conv.weight.data, conv.root.data, conv.bias.data = matrices, own[0], weights[f"layers.{number}.own.bias"]
    return conv


LAYERS = {"sage": sage, "gcn": gcn, "gat": gat, "rgcn": rgcn}


def train_and_export(comm, folder, relations: int, precision: str, *model: str):
    """Collective. Train, export the weights, and predict all nodes."""
    run = folder / "run"
    parts = make_static_parts(comm, lambda path: graph(path, relations), folder)
    train = ["--kind=static", "--train.epochs=1", "--model.layers=2", "--sampling.fanouts=[3,3]", "--model.hidden=8",
             f"--train.precision={precision}", "--comm.threads=1", f"--data.path={parts}",
             f"--output.dir={run}", *model]  # fmt: skip
    predict = ["predict", str(run), f"--out={folder / 'nodes.npz'}"]
    for command in (["train", *train], ["export_model", str(run), str(folder / "exported")], predict):
        ended = run_caught(*command)
        assert ended is None or ended.returncode == 0, ended.stderr


def run_example(folder, feat, index):
    """Outputs of the example, and of predict."""
    np.save(folder / "feat.npy", feat)
    np.save(folder / "edges.npy", index)
    names = [str(folder / "exported"), *(str(folder / f"{name}.npy") for name in ("feat", "edges", "out"))]
    runpy.run_path(str(EXAMPLE))["main"](*names)
    with np.load(folder / "nodes.npz") as file:
        return np.load(names[-1]), file["output"]


@pytest.mark.parametrize(("kind", "precision"), [("sage", "float32"), *((kind, "float64") for kind in LAYERS)])
def test_layers_of_pyg_give_what_predict_writes(comm, mpi_tmp_path, kind, precision):
    nn = pytest.importorskip("torch_geometric.nn")
    relations, out = 2 if kind == "rgcn" else 1, mpi_tmp_path / "exported"
    train_and_export(comm, mpi_tmp_path, relations, precision, f"--model.kind={kind}", "--model.heads=2")
    if comm.rank:
        return
    weights, described = load_file(out / "model.safetensors"), json.loads((out / "config.json").read_text())
    assert {name: tuple(value["shape"]) for name, value in described["tensors"].items()} == {
        name: tuple(tensor.shape) for name, tensor in weights.items()
    }
    assert described["config"]["model"]["kind"] == kind
    feat, ends = graph(mpi_tmp_path / "again.h5", relations)
    index = torch.from_numpy(np.concatenate(ends, axis=1))
    types = torch.arange(relations).repeat_interleave(240)
    rows = torch.from_numpy(feat).to(getattr(torch, precision))
    with torch.no_grad():
        hidden = torch.relu(LAYERS[kind](nn, weights, 0)(rows, index, types))
        output = LAYERS[kind](nn, weights, 1)(hidden, index, types)
    with np.load(mpi_tmp_path / "nodes.npz") as file:
        expected = file["output"]
    tolerance = 1e-6 if precision == "float32" else 1e-9
    np.testing.assert_allclose(output, expected, rtol=tolerance, atol=tolerance)
    if kind == "sage":
        found, expected = run_example(mpi_tmp_path, feat, index.numpy())
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options", [["--features.standardize=true"], ["--task.kind=regression", "--task.standardize=true"]]
)
def test_the_example_standardizes_as_the_run_did(comm, mpi_tmp_path, options):
    train_and_export(comm, mpi_tmp_path, 1, "float64", "--model.kind=sage", *options)
    if comm.rank == 0:
        feat, ends = graph(mpi_tmp_path / "again.h5", 1)
        found, expected = run_example(mpi_tmp_path, feat, ends[0])
        np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-9, atol=1e-9)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("key", "value"),
    [("features.normalize", True), ("model.residual", True), ("model.norm", "layer"), ("model.linear_skip", True),
     ("model.edge_features", True), ("model.edge_weights", True), ("model.aggregator", "sum"), ("model.kind", "gat")],
)  # fmt: skip
def test_the_example_refuses_other_models_by_name(tmp_path, key, value):
    """Before it reads weights."""
    config = static_config(model__kind="sage").to_dict()
    section, name = key.split(".")
    config[section][name] = value
    (tmp_path / "config.json").write_text(json.dumps({"config": config}))
    with pytest.raises(SystemExit, match=rf"^this run has {key} {value}: "):
        runpy.run_path(str(EXAMPLE))["main"](str(tmp_path), "none.npy", "none.npy", "none.npy")


def test_a_run_without_a_best_epoch_is_refused(comm, mpi_tmp_path):
    on_rank_0(comm, lambda: (mpi_tmp_path / "config.yaml").write_text("kind: static\n") and None)
    ended = run_caught("export_model", str(mpi_tmp_path), str(mpi_tmp_path / "out"))
    assert ended is None or "no best checkpoint: the run has not finished an epoch" in ended.stderr
    assert ended is None or (ended.returncode, (mpi_tmp_path / "out").exists()) == (2, False)
