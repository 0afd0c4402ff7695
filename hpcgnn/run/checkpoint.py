"""Checkpoints: written whole or not at all, read on any number of ranks.

A checkpoint is a folder ``checkpoints/<tag>/``: ``state.safetensors`` (weights, optimizer), ``memory-<r>.safetensors``
(node memory of the rows that have mail, by flat row id), ``write-<w>-<r>.safetensors`` (the same of the w-th write that
reads do not see yet, oldest first), and last of all ``manifest.json`` (files with size and sha256, progress). Without
a manifest a folder is no checkpoint. Tags: ``step-<global step>-<epoch>-<step>`` and ``best-<epoch>``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hpcgnn import __version__
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.sample.directory import NodeDirectory
from hpcgnn.store import files
from hpcgnn.store.saved_rows import NodeRowStore, RowOwner, SavedRows

FORMAT, VERSION = "hpcgnn-checkpoint", 1
STATE = "state.safetensors"
KEEP = 2


@dataclass
class Progress:
    """Where a run is. epoch and step are the next to do; step = steps of the epoch means that validation is next."""

    epoch: int = 0
    step: int = 0
    global_step: int = 0
    loss_sum: float = 0.0
    train_seconds: float = 0.0
    best_metric: float = -1.0
    best_epoch: int = -1
    bad_epochs: int = 0
    metrics_bytes: int = 0


@dataclass
class State:
    """What a checkpoint holds besides node memory."""

    progress: Progress
    tensors: dict[str, torch.Tensor]


def find_latest(folder: Path) -> Path | None:
    """The newest whole step checkpoint of a run's ``checkpoints`` folder."""
    return _newest(folder, "step-")


def find_best(folder: Path) -> Path | None:
    """The checkpoint of the best epoch, as the newest step checkpoint names it."""
    latest = find_latest(folder)
    if latest is None:
        return None
    best = folder / best_tag(read_manifest(latest)["progress"]["best_epoch"])
    return best if (best / "manifest.json").is_file() else None


def best_tag(epoch: int) -> str:
    """Folder of the best checkpoint of an epoch."""
    return f"best-{epoch:05d}"


def step_tag(progress: Progress) -> str:
    """Folder of a step checkpoint; no two states of a run share one, and they sort by age."""
    return f"step-{progress.global_step:010d}-{progress.epoch:05d}-{progress.step:07d}"


def _newest(folder: Path, prefix: str) -> Path | None:
    found = sorted(p for p in folder.glob(f"{prefix}*") if (p / "manifest.json").is_file())
    return found[-1] if found else None


def save(
    folder: Path, tag: str, state: State, memory: list[SavedRows], flat_row: np.ndarray, graph: str, world: World
) -> None:
    """Collective. Write a checkpoint; a step checkpoint that is there and whole is this very state and stays.

    Raises DistributedError, leaving the others as they are, when any rank cannot write.
    """
    target = folder / tag
    if world.broadcast(tag.startswith("step-") and (target / "manifest.json").is_file()):
        return
    with together(world, "checkpoint"):
        if world.rank == 0:
            _remove(target)
            target.mkdir(parents=True)
    try:
        with together(world, "checkpoint"):
            written = _write_files(target, state, memory, flat_row, world.rank)
        listed = world.gather(written)
        with together(world, "checkpoint"):
            if world.rank == 0:
                _write_manifest(target, listed, state.progress, graph)
    except Exception:
        if world.rank == 0:
            shutil.rmtree(target, ignore_errors=True)
        raise


def _write_files(target: Path, state: State, memory: list[SavedRows], flat_row, rank: int) -> list[dict]:
    contents: dict[str, dict[str, torch.Tensor]] = {}
    if rank == 0:
        contents[STATE] = state.tensors
    for number, saved in enumerate(memory):
        columns = saved.columns | {"flat_row": torch.from_numpy(flat_row)[saved.rows.cpu()]}
        contents[f"write-{number}-{rank}.safetensors" if number else f"memory-{rank}.safetensors"] = columns
    return [_write_file(target / name, tensors) for name, tensors in contents.items()]


def _write_file(path: Path, tensors: dict[str, torch.Tensor]) -> dict:
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path)
        files.fsync(path)
    except SafetensorError as error:
        raise OSError(f"{path}: cannot write the checkpoint: {error}") from error
    except OSError as error:
        raise OSError(f"{path}: cannot write the checkpoint: {error.strerror or error}") from error
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": files.file_hash(path)}


def _write_manifest(target: Path, listed: list[list[dict]], progress: Progress, graph: str) -> None:
    manifest = {
        "format": FORMAT, "format_version": VERSION, "created_by": f"hpcgnn {__version__}", "graph": graph,
        "files": [entry for entries in listed for entry in entries], "progress": asdict(progress),
    }  # fmt: skip
    temporary = target / "manifest.json.tmp"
    temporary.write_text(json.dumps(manifest, indent=1))
    files.commit(temporary, target / "manifest.json")
    files.fsync(target.parent)


def prune(folder: Path, best_epoch: int) -> None:
    """Keep the newest whole step checkpoints and the best one; drop older ones and what was never finished."""
    whole = sorted(p for p in folder.glob("step-*") if (p / "manifest.json").is_file())
    keep = {*whole[-KEEP:], folder / best_tag(best_epoch)}
    for path in (*folder.glob("step-*"), *folder.glob("best-*")):
        if path not in keep:
            _remove(path)


def _remove(path: Path) -> None:
    """The manifest first: what is left after a kill is no checkpoint."""
    (path / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def read_manifest(path: Path) -> dict:
    """The manifest of a checkpoint whose files are all there with their sizes. Raises ValueError."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}/manifest.json: {error}; not a whole checkpoint") from error
    if manifest.get("format") != FORMAT or manifest.get("format_version") != VERSION:
        found = f"{manifest.get('format')} version {manifest.get('format_version')}"
        raise ValueError(f"{path}: {found}, expected {FORMAT} {VERSION}")
    for entry in manifest["files"]:
        name = path / entry["name"]
        if not name.is_file() or os.path.getsize(name) != entry["bytes"]:
            raise ValueError(_damaged(name))
    return manifest


def _damaged(name: Path) -> str:
    return f"{name}: missing or damaged; remove {name.parent} to fall back to an older checkpoint"


def _load_file(path: Path, entry: dict) -> dict[str, torch.Tensor]:
    name = path / entry["name"]
    if files.file_hash(name) != entry["sha256"]:
        raise ValueError(_damaged(name))
    return load_file(name)


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Weights by parameter, whatever graph they were trained on. Raises ValueError for a damaged checkpoint."""
    entry = next(entry for entry in read_manifest(path)["files"] if entry["name"] == STATE)
    return model_weights(_load_file(path, entry))


def model_weights(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights among a checkpoint's tensors, by parameter."""
    prefix = "model."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def load_state(path: Path, graph: str) -> tuple[State, list[list[dict]]]:
    """Weights, optimizer and progress, and the manifest's entries of the files of node memory, then of every waiting
    write, oldest first. Raises ValueError for a damaged checkpoint and for another graph's."""
    manifest = read_manifest(path)
    if manifest["graph"] != graph:
        raise ValueError(f"{path}: written for another graph ({manifest['graph'][:12]}, this one is {graph[:12]})")
    state = next(entry for entry in manifest["files"] if entry["name"] == STATE)
    tables: dict[int, list[dict]] = {0: []}
    for entry in manifest["files"]:
        kind, _, rest = entry["name"].partition("-")
        if kind in ("memory", "write"):
            tables.setdefault(int(rest.split("-")[0]) if kind == "write" else 0, []).append(entry)
    memory = [tables[number] for number in sorted(tables)]
    return State(_progress(path, manifest["progress"]), _load_file(path, state)), memory


def _progress(path: Path, values: dict) -> Progress:
    known = {field.name for field in fields(Progress)}
    if values.keys() != known:
        strange = ", ".join(sorted(values.keys() ^ known))
        raise ValueError(f"{path}: written by another version of hpcgnn ({strange}); go on with that version")
    return Progress(**values)


def load_memory(
    path: Path, entries: list[list[dict]], memory: NodeRowStore, partition: RowOwner, world: World,
    channel: Channel,
) -> None:  # fmt: skip
    """Collective. Node memory and waiting writes from the files of any number of ranks: each file is read once and its
    rows go to their owners."""
    memory.reset()
    reader = _RowReader(path, memory.prototype(), partition, world, channel)
    table, *writes = entries
    for saved in reader.read(table):
        memory.put(saved)
    memory.share(channel)
    for write in writes:
        memory.put_write(list(reader.read(write)), channel)


class _RowReader:
    """Collective to create. Rows of nodes by flat row id; ``like``: their columns."""

    def __init__(self, path: Path, like: dict[str, torch.Tensor], partition: RowOwner, world: World, channel: Channel):
        self._path, self._like, self._book, self._world, self._channel = path, like, partition.book, world, channel
        ids = partition.book.local_to_global(world.rank)
        self._directory = NodeDirectory(world, channel, partition.flat_row, ids, partition.book.num_nodes)

    def read(self, entries: list[dict]) -> Iterator[SavedRows]:
        """Collective. What the files hold of this rank's nodes, as many files at a time as there are ranks."""
        rank, size, device = self._world.rank, self._world.size, self._world.device
        for first in range(0, len(entries), size):
            mine = entries[first + rank] if first + rank < len(entries) else None
            with together(self._world, "read checkpoint"):
                content = _load_file(self._path, mine) if mine else {}
            rows = content["flat_row"].numpy() if mine else np.empty(0, np.int64)
            route = Route.plan(self._book, self._directory.lookup(rows), self._channel)
            columns = {}
            for name, table in self._like.items():
                values = content[name] if mine else torch.empty((0, *table.shape[1:]), dtype=table.dtype)
                columns[name] = route.push(values.to(table.dtype)).to(device)
            yield SavedRows(route.requests.to(device), columns)
