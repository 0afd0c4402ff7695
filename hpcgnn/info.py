"""Describe this installation and its allocation of cores and GPUs, with a self-check, also under mpirun; or describe
run folders: their data, newest epoch and checkpoints, which are checked.
"""

from __future__ import annotations

import platform
import sys
from functools import partial
from pathlib import Path

import h5py
import jsonargparse
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

import hpcgnn
from hpcgnn import config as configuration
from hpcgnn import native
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import DistributedError, World, gpu_platform, mpi_is_gpu_aware, mpi_version
from hpcgnn.graph import files
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.loop import launch
from hpcgnn.loop.checkpoint import BEST, MANIFEST, STATE, check_files, read_manifest
from hpcgnn.loop.logs import read_lines
from hpcgnn.loop.sweep_file import run_folders
from hpcgnn.loop.trainer import headline
from hpcgnn.native.build import hpcgnn_native
from hpcgnn.reopen import read_sources


def describe_run(folder: Path, check: bool) -> tuple[list[str], list[str]]:
    """Describe a run in lines of text; returns all lines, and the lines that name damaged files. With ``check`` the
    hash of every file is compared, else only its size.

    Raises ValueError or OSError for a folder that holds no run.
    """
    config = configuration.load(folder / "config.yaml")
    tasks = ", ".join([config.task.kind, *(f"{name} ({one.kind})" for name, one in config.task.further.items())])
    lines = [
        f"{folder}: {config.KIND} graph {config.data.path or '(built in)'}, task {tasks}, "
        f"model {config.model_name}, {config.train.epochs} epochs, seed {config.train.seed}"
    ]
    lines += _sources(folder)
    problems: list[str] = []
    try:
        lines += _results(folder, config.train.monitor, problems)
    except (LookupError, TypeError) as error:
        raise ValueError(f"{folder / 'metrics.jsonl'}: {error}; not written by hpcgnn") from error
    checkpoints = sorted(path for path in (folder / "checkpoints").glob("*-*") if path.is_dir())
    for path in checkpoints:
        try:
            lines.append(_checkpoint(path, check))
        except (OSError, ValueError) as error:
            problems.append(f"{path.name}: {error}")
    return [*lines, *([] if checkpoints else ["no checkpoints"]), *problems], problems


def _sources(folder: Path) -> list[str]:
    """Describe the graph that a run is trained on, and its source files, as far as the run has them."""
    origin = read_sources(folder)
    if not origin:
        return []
    graph = f"graph {origin['graph']['name']} (sha256 {origin['graph']['sha256']})"
    return [graph, *(f"  from {source}" for source in files.describe_sources(origin))]


def _results(folder: Path, monitored: str, damaged: list[str]) -> list[str]:
    """Describe the newest epoch and the test; ``damaged``: takes the lines that cannot be read."""
    lines = read_lines(folder / "metrics.jsonl", damaged)
    epochs, tests = ([line for line in lines if line.get("kind") == kind] for kind in ("epoch", "test"))
    described = []
    if epochs:
        values = {name: value for name, value in epochs[-1].items() if value is not None}
        described.append(
            f"epoch {values['epoch']}: loss {values['loss']:.4f} {headline('val', values, monitored)}".rstrip()
        )
    if tests:
        values = {name: value for name, value in tests[-1].items() if value is not None}
        described.append(f"tested: best epoch {values['epoch']}: {headline('test', values, monitored)}")
    return described


def _checkpoint(path: Path, check: bool) -> str:
    """Describe a checkpoint in a line. Raises ValueError or OSError for a damaged one."""
    if not (path / MANIFEST).is_file():
        return f"{path.name}: not finished, to be written anew"
    manifest = read_manifest(path)
    if check:
        check_files(path, manifest["files"])
    progress, size = manifest["progress"], sum(entry["bytes"] for entry in manifest["files"])
    try:
        with safe_open(path / STATE, "pt") as state:
            weights = sum(name.startswith("model.") for name in state.keys())
    except SafetensorError as error:
        raise ValueError(f"{path / STATE}: damaged: {error}") from error
    best = f", best epoch {progress['best_epoch']}" if progress["best_epoch"] >= 0 else ""
    moment = f"before epoch {progress['epoch']}, step {progress['step']}{best}"
    if path.name.startswith(BEST):  # what it knows of a best epoch is about those before its own
        moment = f"after the training of epoch {progress['epoch']}"
    return (
        f"{path.name}: {moment}; {weights} weights, "
        f"{len(manifest['files'])} files, {size / 2**20:.1f} MiB, {'whole' if check else 'sizes right'}, by "
        f"{manifest['created_by']}"
    )


def make_parser() -> jsonargparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = jsonargparse.ArgumentParser(prog="hpcgnn info", description=__doc__, exit_on_error=False)
    parser.add_argument(
        "runs",
        type=str,
        nargs="*",
        default=[],  # else the help calls them required
        help="folders of runs or of sweeps to describe; default: describe this installation",
    )
    return parser


def main(world: World, argv: list[str]) -> int:
    """Collective. Describe a run or the machine; returns exit code 1 when a checkpoint is damaged or the self-check
    fails."""
    folders = launch.on_first_rank(world, "arguments", lambda: configuration.parse_arguments(make_parser(), argv).runs)
    if not folders:
        return _describe_machine()
    damaged: list[str] = []
    for folder in launch.on_first_rank(world, "find the runs", lambda: run_folders([*map(Path, folders)])):
        described = partial(describe_run, folder, check=True)
        lines, problems = launch.on_first_rank(world, "describe the run", described)
        damaged += problems
        if world.rank == 0:
            print("\n".join(lines))
    return launch.EXIT_FAILURE if damaged else launch.EXIT_DONE


def _describe_machine() -> int:
    """Collective. Describe software and hardware and check both; returns the exit code."""
    world = World(compares=False)
    lines = _software() + _hardware(world)
    problems = [*_differences(world), *self_check(world)]
    if world.rank == 0:
        print("\n".join(lines))
        print(
            "self-check: "
            + ("kernels and exchange agree with their references" if not problems else "; ".join(problems))
        )
    world.barrier()
    return launch.EXIT_FAILURE if problems else launch.EXIT_DONE


def _differences(world: World) -> list[str]:
    """Collective. Say what ranks do not have alike, with which no run would start."""
    try:
        world.check_same()
    except DistributedError as error:
        return [str(error)]
    return []


def _software() -> list[str]:
    features = native.features()
    has = ", ".join(
        f"{name} {'yes' if value is True else 'no' if value is False else value}" for name, value in features.items()
    )
    build = hpcgnn_native.kernels.__name__.rpartition(".")[2]
    folder, builds = Path(hpcgnn_native.__file__).parent, ", ".join(hpcgnn_native.BUILDS)
    processor, built_on = hpcgnn_native.processor()[0], hpcgnn_native.BUILT_ON
    aware = "yes" if mpi_is_gpu_aware() else "no (device rows are staged through pinned memory)"
    return [
        f"hpcgnn {hpcgnn.__version__}, python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}, "
        f"h5py {h5py.__version__}",
        f"MPI: {mpi_version()}",
        f"{gpu_platform()}-aware MPI: {aware}",
        f"package: {Path(hpcgnn.__file__).parent}",
        f"kernels: {has}; build {build} of {builds} in {folder}",
        f"processor: {processor}; kernels built on {built_on} by {hpcgnn_native.COMPILER}",
    ]


def _hardware(world: World) -> list[str]:
    threads_ok = "yes" if world.can_prefetch else "no (plans are made in place)"
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    placement = world.gather(f"  rank {world.rank}: {world.host}, local rank {world.local_rank} of {world.local_size}, "
                          f"{world.threads} threads, {world.device}")  # fmt: skip
    return [
        f"MPI calls from several threads: {threads_ok}",
        f"GPUs of rank 0: {', '.join(gpus) or 'none'}",
        *(placement or []),
    ]


def self_check(world: World) -> list[str]:
    """Collective. List the problems of all ranks: a random number that is known, a native layer against plain
    torch, kernels of a GPU against the host's, rows pulled along a route."""
    problems = []
    word = native.random_integers(native.Random(0, 0), np.zeros(1, np.int64), 1, (1 << 32) - 1)[0, 0]
    if word != (0x6627E8D5 * ((1 << 32) - 1)) >> 32:
        problems.append("Philox does not give its known answer")
    if not _layer_agrees():
        problems.append("a native layer differs from plain torch")
    if world.device.type == "cuda" and not _device_agrees(world.device):
        problems.append(f"kernels of {world.device} differ from the host's")
    ownership = BlockOwnership.even(10 * world.size, world.size)
    ids = np.random.default_rng(world.rank).permutation(10 * world.size)
    rows = torch.arange(10) + 10 * world.rank
    (pulled,) = Route.plan(ownership, ids, world.channel()).pull(rows)
    if pulled.tolist() != ids.tolist():
        problems.append("rows pulled over MPI are not the owners'")
    return [f"rank {rank}: {text}" for rank, texts in enumerate(world.allgather(problems)) for text in texts]


def _layer_agrees() -> bool:
    """Whether a native layer, with its sums over lists and its products, gives the same as plain torch."""
    torch.manual_seed(0)
    rows, weight, bias = torch.randn(50, 7), torch.randn(20, 14), torch.randn(20)
    lists = native.EdgeLists(torch.tensor([0, 30, 90, 120]), torch.arange(120) * 7 % 50, len(rows))
    total = torch.stack([rows[piece].sum(0) for piece in lists.source.split([30, 60, 30])])
    fused = native.sage_layer(rows, None, lists, weight, bias, mean=False, relu=True)
    return torch.allclose(fused, torch.relu(torch.cat([rows[:3], total], 1) @ weight.T + bias), rtol=1e-4, atol=1e-4)


def _device_agrees(device: torch.device) -> bool:
    """Say whether a device gathers rows and sums lists of them as the host does, bit for bit."""
    rows, index = torch.randn(50, 7), torch.arange(120) * 7 % 50
    gathered, summed = [], []
    for place in (torch.device("cpu"), device):
        on_place = rows.to(place), index.to(place)
        lists = native.EdgeLists(torch.tensor([0, 0, 64, 120], device=place), on_place[1], len(rows))
        gathered.append(native.gather_rows(*on_place).cpu())
        summed.append(native.segment_sum(on_place[0], lists).cpu())
    return torch.equal(*gathered) and torch.equal(*summed)


if __name__ == "__main__":
    sys.exit(launch.run(main))
