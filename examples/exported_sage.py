"""Computes an exported GraphSAGE model in plain PyTorch, without hpcgnn.

    hpcgnn export_model run/ exported/
    python examples/exported_sage.py exported/ features.npy edges.npy outputs.npy

features [N, F]: a row for each node; edges [2, E]: sources and destinations. For runs with `model.kind: sage`, the mean
aggregator, one node type and one relation. Features and labels are standardized if the run did so. Runs with other keys
than `COMPUTED` has are refused.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

COMPUTED = {
    "model.class_path": "",
    "model.kind": "sage",
    "model.aggregator": "mean",
    "model.activation": "relu",
    "model.norm": "none",
    "model.residual": False,
    "model.linear_skip": False,
    "model.input_layer": False,
    "model.output_layer": "none",
    "model.edge_features": False,
    "model.edge_weights": False,
    "features.normalize": False,
}


def forward(weights: dict, rows: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Compute the outputs [N, C] of all nodes."""
    source, destination = edges
    if "input.mean_0" in weights:  # features.standardize
        rows = (rows - weights["input.mean_0"]) / weights["input.deviation_0"]
    layers = sum(name.endswith("product.weight") for name in weights)
    degree = torch.bincount(destination, minlength=len(rows)).clamp(min=1).unsqueeze(1)
    for number in range(layers):
        weight, bias = (weights[f"layers.{number}.product.{name}"] for name in ("weight", "bias"))
        mean = torch.zeros_like(rows).index_add(0, destination, rows[source]) / degree
        rows = torch.cat([rows, mean], dim=1) @ weight.T + bias
        if number < layers - 1:
            rows = torch.relu(rows)
    if "standard_target.mean" in weights:  # task.standardize
        rows = weights["standard_target.mean"] + weights["standard_target.deviation"] * rows
    return rows


def main(folder: str, features: str, edges: str, out: str) -> None:
    """Read an exported model and a graph, and write the outputs."""
    config = json.loads((Path(folder) / "config.json").read_text())["config"]
    for key, computed in COMPUTED.items():
        section, name = key.split(".")
        if config[section][name] != computed:
            raise SystemExit(f"this run has {key} {config[section][name]}: this example computes {computed!r} alone")
    weights = load_file(Path(folder) / "model.safetensors")
    rows = torch.from_numpy(np.load(features)).to(weights["layers.0.product.weight"].dtype)
    np.save(out, forward(weights, rows, torch.from_numpy(np.load(edges))).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
