"""Finds, checks and reads checkpoints, on any number of ranks; `checkpoint_writer` writes them.

A checkpoint is a folder ``checkpoints/<tag>/``. ``state.safetensors`` has weights, optimizer, configuration and
the state of callbacks.
``memory-<r>.safetensors`` has the node memory of the rows that have mail, by flat row id. ``write-<w>-<r>.safetensors``
has rows of the w-th write that reads do not see yet, oldest first. Within an epoch, ``scores-<r>.safetensors`` has the
epoch's training scores so far, where metrics are made from them. ``manifest.json`` is written last, beside
``manifest.sha256``; it has files with size and sha256, and progress. A folder without a manifest is no checkpoint.
Tags: ``step-<global step>-<epoch>-<step>`` and ``best-<epoch>``.

Version 2 has the last layout of version 1, so checkpoints of version 1 are read, unless they have its first layout. The
first layout has ``best_ap`` instead of ``best_metric``, or one mail per node (``has_mail``) instead of a mailbox.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from hpcgnn import __version__
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph import files
from hpcgnn.graph.book import Book
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.directory import NodeDirectory
from hpcgnn.graph.saved_rows import NodeRowStore, RowOwner, SavedRows
from hpcgnn.loop.schema import Schema

FORMAT, VERSION = "hpcgnn-checkpoint", 2
BEST = "best-"  # the names of best checkpoints begin with it
STATE = "state.safetensors"
# In the metadata of STATE, as JSON: the run's configuration, its graph's schema, and the state of its callbacks.
CONFIG, SCHEMA, CALLBACKS = "config", "schema", "callbacks"
MANIFEST = "manifest.json"
SCORES, OLD_SCORES = "scores-", "scores."  # how the names of files of training scores begin, and of tensors before
SEAL = "manifest.sha256"  # as sha256sum writes it; checkpoints of earlier versions have none
NO_FILES = slice(0)  # of a manifest that is read for what it says
FILE_NAME = re.compile(r"(state|scores-\d+|memory-\d+|write-\d+-\d+)\.safetensors")


class OtherVersionError(ValueError):
    """Raised for a checkpoint that is whole but has another layout; the message names it, its version and the
    remedy."""


@dataclass
class Progress:
    """Position of a run. epoch, step: the next ones; where step is the number of steps of the epoch, validation comes
    next."""

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
    """Contents of a checkpoint, without node memory. scores: this rank's training scores of the epoch so far, by name;
    callbacks: the state of the run's callbacks, as JSON; its tensors are among the others."""

    progress: Progress
    tensors: dict[str, torch.Tensor]
    scores: dict[str, torch.Tensor] = field(default_factory=dict)
    callbacks: str = ""


def find_latest(folder: Path) -> Path | None:
    """Find the newest whole step checkpoint in a run's ``checkpoints`` folder."""
    return next(reversed(step_checkpoints(folder)), None)


def step_checkpoints(folder: Path) -> list[Path]:
    """List the whole step checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / MANIFEST).is_file())


def recorded_config(folder: Path) -> tuple[str, dict[str, Any]]:
    """Read the configuration that a run was trained with from its newest step checkpoint, skipping damaged ones;
    returns the checkpoint's name, too. Empty without checkpoints, and for one that an earlier version wrote."""
    for path in reversed(step_checkpoints(folder)):
        with contextlib.suppress(ValueError, OSError, SafetensorError):
            check_files(path, [entry for entry in read_manifest(path)["files"] if entry["name"] == STATE])
            with safe_open(path / STATE, "pt") as state:
                recorded = decode_json((state.metadata() or {}).get(CONFIG, "{}"))
            if isinstance(recorded, dict) and all(isinstance(keys, dict | str) for keys in recorded.values()):
                return path.name, recorded
    return "", {}


def recorded_schema(path: Path) -> Schema | None:
    """Read what a checkpoint's model needs of a graph; None where an earlier version wrote it. Raises ValueError for a
    damaged checkpoint."""
    text = _metadata(path).get(SCHEMA)
    return None if text is None else Schema.from_json(text)


def task_and_data(path: Path) -> tuple[str, str]:
    """Read what kind of task a checkpoint's run has, and the partition set of its graph; the built-in graph lies in the
    run folder. Raises ValueError for a damaged checkpoint."""
    config = decode_json(_metadata(path).get(CONFIG, "{}"))
    sections = [config.get(name, {}) for name in ("task", "data")]
    return sections[0].get("kind", ""), sections[1].get("path") or str(path.parents[1] / "data" / "parts")


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path / STATE, "pt") as state:
            return state.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{_damaged(path / STATE)}: {error}") from error


def find_sound(folder: Path, world: World, log: Callable[[str], None]) -> tuple[Path | None, bool]:
    """Collective. Find the newest step checkpoint whose files are all unchanged since they were written. Returns it,
    and whether the best checkpoint that it names is sound, too; (None, True) where there is no checkpoint.

    Where the checkpoint of the best epoch is lost, an older step checkpoint is taken, if there is one, and the best
    epoch is trained again. Logs the checkpoints that it skips. Damaged ones are made invalid, so that the run writes
    them anew. Raises DistributedError when every checkpoint is damaged, and when one that is newer than all sound ones
    has another layout: an older checkpoint would lose work."""
    paths, damaged, lost = world.broadcast(step_checkpoints(folder)), [], -1
    sound: Path | None = None
    for path in reversed(paths):
        if problem := find_damage(path, world):
            log(f"{path.name} is damaged and skipped: {problem}")
            damaged.append(path)
            continue
        progress = read_manifest(path, NO_FILES)["progress"] if world.rank == 0 else {}
        best_epoch = int(world.broadcast(progress.get("best_epoch")))
        if sound is not None and best_epoch == lost:
            continue
        best = folder / best_tag(best_epoch)
        if sound is not None:
            log(f"using {path.name}, from before {best_tag(lost)}, which is trained again")
        elif best_epoch >= 0 and (problem := find_damage(best, world)):
            log(f"{best.name} is damaged: {problem}")
            sound, lost = path, best_epoch
            damaged.append(best)
            continue
        _set_aside(damaged, world)
        return path, True
    if paths and sound is None:
        raise DistributedError(f"{folder}: none of {len(paths)} checkpoints is whole; see the log", user_error=True)
    _set_aside(damaged, world)
    return sound, sound is None


def _set_aside(damaged: list[Path], world: World) -> None:
    """Collective. Rename the manifests of damaged checkpoints: without one a folder is no checkpoint."""
    with together(world, "set damaged checkpoints aside"):
        for path in damaged if world.rank == 0 else []:
            with contextlib.suppress(FileNotFoundError):
                os.replace(path / MANIFEST, path / f"{MANIFEST}.damaged")


def find_damage(path: Path, world: World) -> str | None:
    """Collective. Say what is wrong with the files of a checkpoint, None for nothing; each rank checks a share of them.
    Raises DistributedError for another layout."""
    problem = None
    with together(world, "read checkpoint"):
        try:
            share = share_of(world)
            for number, entry in enumerate(read_manifest(path, share)["files"][share]):
                world.working("check the checkpoint", number)
                check_files(path, [entry])
        except OtherVersionError:
            raise
        except ValueError as error:  # a disk that cannot be read now says nothing of the files
            problem = str(error)
    return next((text for text in world.allgather(problem) if text), None)


def find_best(folder: Path) -> Path | None:
    """Find the newest checkpoint of a best epoch: each is better than the earlier ones. Perhaps no step checkpoint
    names it: with ``sampling.halo_staleness`` some epochs end without a step checkpoint. Raises OtherVersionError."""
    bests = sorted(path for path in folder.glob(f"{BEST}*") if (path / MANIFEST).is_file())
    for path in filter(None, [find_latest(folder), *bests[-1:]]):
        try:
            read_manifest(path, NO_FILES)
        except OtherVersionError:
            raise
        except ValueError:  # who reads it will say so
            continue
    return bests[-1] if bests else None


def best_tag(epoch: int) -> str:
    """Name the folder of an epoch's best checkpoint."""
    return f"{BEST}{epoch:05d}"


def step_tag(progress: Progress) -> str:
    """Name the folder of a step checkpoint: no two states of a run share a name, and names sort by age."""
    return f"step-{progress.global_step:010d}-{progress.epoch:05d}-{progress.step:07d}"


def share_of(world: World) -> slice:
    """Choose the files of a manifest that this rank looks at, where ranks together look at each once."""
    return slice(world.rank, None, world.size)


def read_manifest(path: Path, share: slice = slice(None)) -> dict:
    """Read a manifest, and compare it with its seal and the sizes of the files that it lists, or of a share of them.
    Raises ValueError, and OtherVersionError for another format, version or layout."""
    try:
        content = (path / MANIFEST).read_bytes()
        if (path / SEAL).exists() and (path / SEAL).read_bytes() != seal_of(content):
            raise ValueError(f"its content does not match its hash in {SEAL}")
        manifest = decode_json(content)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{path / MANIFEST}: {error}; not a whole checkpoint") from error
    if not isinstance(manifest, dict):
        raise ValueError(f"{path / MANIFEST}: expected an object; not a whole checkpoint")
    version = manifest.get("format_version")
    if manifest.get("format") != FORMAT or version not in (1, VERSION):
        _refuse_version(path, f"{manifest.get('format')} version {version}")
    _check_manifest(path / MANIFEST, manifest)
    for entry in manifest["files"][share]:
        name = path / entry["name"]
        if not name.is_file() or os.path.getsize(name) != entry["bytes"]:
            raise ValueError(_damaged(name))
    if version == 1 and (strange := _first_layout(path, manifest)):
        _refuse_version(path, f"{FORMAT} version 1 with {strange}")
    return manifest


def seal_of(manifest: bytes) -> bytes:
    """Make the content of the file SEAL for a manifest."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()


def _refuse_version(path: Path, description: str) -> NoReturn:
    raise OtherVersionError(
        f"{path}: {description}, this hpcgnn {__version__} reads {FORMAT} version {VERSION}; "
        "resume with the hpcgnn that wrote it, or train anew into another folder"
    )


def _first_layout(path: Path, manifest: dict) -> str | None:
    """Name the sign by which a checkpoint of version 1 has that version's first layout; None if it has the last one.
    Raises ValueError for node memory that cannot be read."""
    if "best_ap" in manifest["progress"]:
        return "best_ap in its manifest"
    memory = [path / entry["name"] for entry in manifest["files"] if entry["name"].startswith("memory-")]
    try:
        for name in memory[:1]:  # the files of all ranks have the same columns
            with safe_open(name, "pt") as columns:
                if "has_mail" in columns.keys():
                    return "one mail a node"
    except SafetensorError as error:
        raise ValueError(f"{_damaged(name)}: {error}") from error
    return None


def _check_manifest(path: Path, manifest: dict) -> None:
    """Raise ValueError unless a manifest has all keys, of the right types, and names files beside itself."""
    listed: Any = manifest.get("files")
    progress: Any = manifest.get("progress")
    sound = [type(manifest.get(key)) for key in ("graph", "created_by")] == [str, str]
    sound = sound and isinstance(listed, list) and all(map(_is_file_entry, listed))
    sound = sound and STATE in [entry["name"] for entry in listed]
    sound = sound and isinstance(progress, dict) and progress.keys() >= {"epoch", "step", "best_epoch"}
    if not sound or not all(type(value) in (int, float) for value in progress.values()):
        raise ValueError(f"{path}: not as hpcgnn writes it; not a whole checkpoint")


def _is_file_entry(entry: Any) -> bool:
    types = [type(entry.get(key)) for key in ("name", "bytes", "sha256")] if isinstance(entry, dict) else []
    return types == [str, int, str] and FILE_NAME.fullmatch(entry["name"]) is not None


def _damaged(name: Path) -> str:
    return f"{name}: missing or damaged"


def _load_file(path: Path, entry: dict) -> dict[str, torch.Tensor]:
    name = path / entry["name"]
    check_files(path, [entry])
    try:
        return load_file(name)
    except SafetensorError as error:
        raise ValueError(f"{_damaged(name)}: {error}") from error


def check_files(path: Path, entries: list[dict]) -> None:
    """Raise ValueError that names the first of some files, entries of the manifest, that is not as it was written."""
    for entry in entries:
        name = path / entry["name"]
        if not name.is_file() or files.file_hash(name) != entry["sha256"]:
            raise ValueError(_damaged(name))


WEIGHT = "weight"  # the column of learned rows; further ones are the state of their optimizer
# How the names of weights, of a model's buffers, and of the tensors of callbacks begin.
MODEL, BUFFER, CALLBACK = "model.", "buffer.", "callback."


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read the weights by parameter, whatever graph they were trained on. Raises ValueError for a damaged
    checkpoint."""
    return named(load_tensors(path), MODEL)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint, except the rows of nodes. Raises ValueError for a damaged checkpoint."""
    entry = next(entry for entry in read_manifest(path, NO_FILES)["files"] if entry["name"] == STATE)
    return _load_file(path, entry)


def named(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Pick the tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def model_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Collect what a checkpoint holds of a model: its parameters and its persistent buffers, such as running
    statistics."""
    tensors = {MODEL + name: value.detach() for name, value in model.named_parameters()}
    return tensors | {BUFFER + name: value for name, value in buffers_of(model).items()}


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Collect a model's persistent buffers by name."""
    persistent = model.state_dict()
    return {name: value for name, value in model.named_buffers() if name in persistent}


def load_state(path: Path, graph: str, share: slice = slice(None)) -> tuple[State, list[list[dict]]]:
    """Read weights, optimizer and progress, and list the manifest's entries of the files of node memory, then of every
    waiting write, oldest first. share: of the files whose sizes are looked at. Raises ValueError for a damaged
    checkpoint and for one of another graph."""
    manifest = read_manifest(path, share)
    if manifest["graph"] != graph:
        raise ValueError(
            f"{path}: written for another graph ({manifest['graph'][:12]}, this one is {graph[:12]}); if events were "
            "appended, start a new run from its weights with --train.init RUN, which forms node memory anew"
        )
    state = next(entry for entry in manifest["files"] if entry["name"] == STATE)
    tables: dict[int, list[dict]] = {0: []}
    for entry in manifest["files"]:
        kind, _, rest = entry["name"].partition("-")
        if kind in ("memory", "write"):
            tables.setdefault(int(rest.split("-")[0]) if kind == "write" else 0, []).append(entry)
    memory = [tables[number] for number in sorted(tables)]
    tensors, callbacks = _load_file(path, state), _metadata(path).get(CALLBACKS, "")
    return State(progress_of(path, manifest), tensors, callbacks=callbacks), memory


def progress_of(path: Path, manifest: dict) -> Progress:
    """Read the progress that a manifest has. Raises ValueError for that of another version."""
    values, names = manifest["progress"], {field.name for field in fields(Progress)}
    if values.keys() != names:
        strange = ", ".join(sorted(values.keys() ^ names))
        raise ValueError(f"{path}: written by another version of hpcgnn ({strange}); resume with that version")
    return Progress(**values)


def load_scores(path: Path, tensors: dict[str, torch.Tensor], world: World) -> dict[str, torch.Tensor]:
    """Collective. Read a share of the training scores, whole files: where there are any, every rank gets all columns,
    maybe without a row. Their order does not matter to the metrics. Earlier checkpoints have them among ``tensors``."""
    with together(world, "read checkpoint"):
        entries = [entry for entry in read_manifest(path, NO_FILES)["files"] if entry["name"].startswith(SCORES)]
        pieces = [_load_file(path, entry) for entry in entries[world.rank :: world.size]]
        none = _no_rows(path / entries[0]["name"]) if entries else {}
    if old := named(tensors, OLD_SCORES):
        return {name: values[: None if world.rank == 0 else 0] for name, values in old.items()}
    return {name: torch.cat([values, *(piece[name] for piece in pieces)]) for name, values in none.items()}


def _no_rows(name: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(name, "pt") as columns:
            return {key: columns.get_slice(key)[:0] for key in columns.keys()}
    except SafetensorError as error:
        raise ValueError(f"{_damaged(name)}: {error}") from error


def load_memory(
    path: Path, entries: list[list[dict]], memory: NodeRowStore, partition: RowOwner, world: World,
    channel: Channel,
) -> None:  # fmt: skip
    """Collective. Read node memory and waiting writes from the files of any number of ranks: each file is read once,
    and its rows are sent to their owners."""
    memory.reset()
    ids = partition.book.local_to_global(world.rank)
    directory = NodeDirectory(world, channel, partition.flat_row, ids, partition.book.num_nodes)
    reader = _SavedRowReader(path, memory.prototype(), partition.book, directory, world, channel)
    table, *writes = entries
    for saved in reader.read(table):
        memory.put(saved)
    memory.share(channel)
    for write in writes:
        memory.put_write(list(reader.read(write)), channel)


def carry_rows(
    path: Path, entries: list[dict], memory: NodeRowStore, book: Book, directory: NodeDirectory, world: World,
    channel: Channel,
) -> int:  # fmt: skip
    """Collective. Read the learnable embeddings of nodes of another graph. Its ``directory`` has, by flat row id, the
    global ids of the same nodes in this graph, -1 for other nodes. Returns the number of rows that this rank got."""
    like = {WEIGHT: memory.prototype()[WEIGHT]}
    reader, count = _SavedRowReader(path, like, book, directory, world, channel), 0
    for saved in reader.read(entries):
        memory.put(saved)
        count += len(saved.rows)
    memory.share(channel)
    return count


class _SavedRowReader:
    """Reads rows of nodes, which files have by flat row id; ``like``: their columns; directory: the nodes of the graph
    that the files are of, with global ids of ``book``, -1 for nodes that it does not have."""

    def __init__(
        self, path: Path, like: dict[str, torch.Tensor], book: Book, directory: NodeDirectory, world: World,
        channel: Channel,
    ):  # fmt: skip
        self._path, self._like, self._book, self._world, self._channel = path, like, book, world, channel
        self._directory = directory

    def read(self, entries: list[dict]) -> Iterator[SavedRows]:
        """Collective. Read the rows of this rank's nodes, from as many files at a time as there are ranks."""
        rank, size, device = self._world.rank, self._world.size, self._world.device
        for first in range(0, len(entries), size):
            self._world.working("read the checkpoint", first)
            entry = entries[first + rank] if first + rank < len(entries) else None
            with together(self._world, "read checkpoint"):
                content = self._read_file(entry) if entry else {}
            rows = content["flat_row"].numpy() if entry else np.empty(0, np.int64)
            ids = self._directory.lookup(rows)
            is_here = ids >= 0
            route, columns = Route.plan(self._book, ids[is_here], self._channel), {}
            for name, table in self._like.items():
                values = content[name] if entry else torch.empty((0, *table.shape[1:]), dtype=table.dtype)
                columns[name] = route.push(values[torch.from_numpy(is_here)].to(table.dtype)).to(device)
            yield SavedRows(route.requests.to(device), columns)

    def _read_file(self, entry: dict) -> dict[str, torch.Tensor]:
        """Read a file's columns. Raises ValueError unless they fit this run's node memory and graph."""
        content = _load_file(self._path, entry)
        rows = content.get("flat_row", torch.empty(0))
        sound = rows.dtype == torch.int64 and rows.ndim == 1 and self._like.keys() <= content.keys()
        sound = sound and all(content[name].shape == (len(rows), *like.shape[1:]) for name, like in self._like.items())
        if not sound or not ((rows >= 0) & (rows < self._directory.size)).all():
            raise ValueError(f"{self._path / entry['name']}: not the node memory of the configured model and graph")
        return content
