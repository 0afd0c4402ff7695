"""Write the best weights of a run for other programs: model.safetensors and config.json, which plain PyTorch can read.

Tensors have the names of the model's modules. The table in docs/runs.md shows where they belong in PyTorch Geometric.
Rows of nodes are not among them: learnable node embeddings and node memory stay in the checkpoint.

    hpcgnn export_model run/ exported/
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonargparse
from safetensors.torch import save_file

from hpcgnn import config as configuration
from hpcgnn.comm.world import World
from hpcgnn.graph import durable
from hpcgnn.loop import checkpoint, launch
from hpcgnn.reopen import find_best

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def make_parser() -> jsonargparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = jsonargparse.ArgumentParser(prog="hpcgnn export_model", description=__doc__, exit_on_error=False)
    parser.add_argument("run", type=str, help="run folder to read")
    parser.add_argument("out", type=str, help="folder to write model.safetensors and config.json into")
    return parser


def main(world: World, argv: list[str]) -> int:
    """Collective. Export the best epoch of a run, by rank 0; returns the exit code."""

    def write() -> None:
        arguments = configuration.parse_arguments(make_parser(), argv)
        print(export(Path(arguments.run), Path(arguments.out)))

    launch.on_first_rank(world, "export the model", write)
    return launch.EXIT_DONE


def export(run: Path, out: Path) -> str:
    """Write weights and buffers of the best epoch of a run into a folder, and the configuration, names of classes and
    shapes beside them; returns a line about it. Raises ValueError for a run without a best epoch, or a damaged one."""
    config = configuration.load(run / "config.yaml")
    best = find_best(run, config)
    tensors = checkpoint.load_tensors(best)
    model = {
        name: tensor.contiguous()
        for prefix in (checkpoint.MODEL, checkpoint.BUFFER)
        for name, tensor in checkpoint.named(tensors, prefix).items()
    }
    schema = checkpoint.recorded_schema(best)
    manifest = checkpoint.read_manifest(best, checkpoint.NO_FILES)
    described = {
        "epoch": checkpoint.progress_of(best, manifest).epoch,
        "tensors": {
            name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            for name, tensor in model.items()
        },
        "schema": None if schema is None else schema.values,
        "config": config.to_dict(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, save in (
        (WEIGHTS, lambda path: save_file(model, path, {"format": "pt"})),
        (CONFIG, lambda path: path.write_text(json.dumps(described, indent=2) + "\n")),
    ):
        temporary = out / (name + ".tmp")
        save(temporary)
        durable.commit(temporary, out / name)
    return f"{out}: {len(model)} tensors of epoch {described['epoch']}; rows of nodes stay in the checkpoint"


if __name__ == "__main__":
    sys.exit(launch.run(main))
