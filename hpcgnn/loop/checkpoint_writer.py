"""Writes checkpoints in the background of training, and loads them into a session.

The content of a checkpoint is copied and a thread of every rank writes the rank's files. The manifest, which makes the
folder a checkpoint, follows once the files of all ranks are on disk.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from hpcgnn import __version__
from hpcgnn.comm.same import await_files, same_everywhere
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph import durable, files
from hpcgnn.graph.directory import NodeDirectory
from hpcgnn.graph.names import find_by_name, read_names
from hpcgnn.graph.saved_rows import SavedRows
from hpcgnn.loop import checkpoint
from hpcgnn.loop.checkpoint import (
    FORMAT,
    MANIFEST,
    SCORES,
    SEAL,
    STATE,
    VERSION,
    Progress,
    State,
    best_tag,
    seal_of,
    step_checkpoints,
)
from hpcgnn.loop.same_model import check_model
from hpcgnn.loop.schema import Schema
from hpcgnn.loop.session import Session
from hpcgnn.native.dispatch import download

SEEN_SECONDS = 60.0  # until a network file system must show rank 0 what other machines wrote
MOST_WAITING = 2  # copies of the run's state in memory; an epoch's end leaves two


@dataclass(slots=True)
class _CheckpointJob:
    """A checkpoint whose files are being written."""

    target: Path
    progress: Progress
    is_step: bool
    files: Future


class CheckpointWriter:
    """Collective, except ``is_busy``. keep: number of step checkpoints to keep; graph: identity of the partitioned
    graph. config: configuration of the run, which a resumed run is compared with; schema: needs of the model.

    A file that a rank cannot write raises DistributedError on all ranks, with the next ``add`` or ``settle``. Complete
    checkpoints stay unchanged; waiting ones are given up.
    """

    def __init__(
        self, folder: Path, graph: str, keep: int, world: World, watchdog: Watchdog, config: dict[str, Any],
        schema: Schema | None = None,
    ):  # fmt: skip
        self._metadata = {checkpoint.CONFIG: json.dumps(config), checkpoint.SCHEMA: (schema or Schema()).to_json()}
        self._folder, self._graph, self._keep, self._world, self._watchdog = folder, graph, keep, world, watchdog
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._jobs: list[_CheckpointJob] = []

    @property
    def is_busy(self) -> bool:
        """Whether this rank still writes."""
        return any(not job.files.done() for job in self._jobs)

    @property
    def has_waiting(self) -> bool:
        """Whether any checkpoint is under way, its manifest not written; the same on all ranks."""
        return bool(self._jobs)

    def add(self, tag: str, state: State, memory: list[SavedRows], flat_row: np.ndarray) -> None:
        """Begin a checkpoint of a copy of ``state``; ``memory`` is a copy already. A step checkpoint of this tag that
        is whole or under way holds the same state and stays."""
        target, is_step = self._folder / tag, tag.startswith("step-")
        if any(job.target == target for job in self._jobs):
            return
        # Rank 0 alone looks: a network file system may show other ranks the folder as it was.
        if self._world.broadcast(self._world.rank == 0 and is_step and (target / MANIFEST).is_file()):
            return
        if len(self._jobs) >= MOST_WAITING:
            self.settle()
        with together(self._world, "checkpoint"):
            if self._world.rank == 0:
                remove(target)
                target.mkdir(parents=True)
        contents = _contents(state, memory, flat_row, self._world.rank)  # copies: training goes on meanwhile
        metadata = self._metadata | ({checkpoint.CALLBACKS: state.callbacks} if state.callbacks else {})
        written = self._thread.submit(_write_files, target, contents, metadata)
        self._jobs.append(_CheckpointJob(target, state.progress, is_step, written))

    def settle(self) -> None:
        """Finish all checkpoints that are under way, waiting for their files."""
        while self._jobs:
            try:
                self._finish(self._jobs[0])
            except Exception:
                self._give_up()
                raise
            self._jobs.pop(0)  # not before: what fails is still to be removed

    def close(self) -> None:
        """Not collective. Give up the checkpoints that are under way; without effect after ``settle``."""
        self._give_up()
        self._thread.shutdown()

    def _finish(self, job: _CheckpointJob) -> None:
        with together(self._world, "checkpoint"):
            own_entries = job.files.result()
            self._watchdog.at("checkpoint, own files written", job.progress.global_step)
        entries = self._world.gather((self._world.host, own_entries))
        with together(self._world, "checkpoint"):
            if self._world.rank == 0:
                entries = self._seen(job, entries)
                _write_manifest(job.target, entries, job.progress, self._graph)
                if job.is_step:
                    under_way = {later.target for later in self._jobs}
                    stale = prune(self._folder, job.progress.best_epoch, self._keep, under_way)
                    self._thread.submit(_remove_folders, stale)  # some files a rank, for which nobody waits

    def _seen(self, job: _CheckpointJob, entries_by_host: list[tuple[str, list[dict]]]) -> list[list[dict]]:
        """Return the entries of all ranks, once rank 0 sees the files. Raises OSError for one that stays out of sight:
        it is another machine's own disk that it was written to."""
        for rank, (host, entries) in enumerate(entries_by_host):
            sizes = {job.target / entry["name"]: entry["bytes"] for entry in entries}
            report = partial(self._watchdog.at, "checkpoint, files of other ranks", job.progress.global_step)
            lost = await_files(sizes, partial(_has_size, sizes), SEEN_SECONDS, report)
            if lost is not None:
                raise OSError(
                    f"{lost}: rank {rank} on {host} wrote it, rank 0 on {self._world.host} does not see it whole after "
                    f"{SEEN_SECONDS:g} s: the run folder must be one that all machines share; see output.dir"
                )
        return [entries for _, entries in entries_by_host]

    def _give_up(self) -> None:
        for job in self._jobs:
            job.files.cancel()
        for job in self._jobs:
            if not job.files.cancelled():
                job.files.exception()  # a file that is being written is not removed under way
            if self._world.rank == 0:
                shutil.rmtree(job.target, ignore_errors=True)
        self._jobs.clear()


def _contents(state: State, memory: list[SavedRows], flat_row: np.ndarray, rank: int) -> dict[str, dict]:
    """Lay out the tensors of a checkpoint by file."""
    contents: dict[str, dict[str, torch.Tensor]] = {}
    if rank == 0:
        contents[STATE] = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
    if state.scores:
        contents[f"{SCORES}{rank}.safetensors"] = {name: values.clone() for name, values in state.scores.items()}
    for number, saved in enumerate(memory):
        columns = saved.columns | {"flat_row": torch.from_numpy(flat_row[saved.rows.cpu().numpy()])}
        contents[f"write-{number}-{rank}.safetensors" if number else f"memory-{rank}.safetensors"] = columns
    return contents


def _has_size(sizes: dict[Path, int], path: Path) -> bool:
    return path.is_file() and path.stat().st_size == sizes[path]


def _write_files(target: Path, contents: dict[str, dict[str, torch.Tensor]], metadata: dict[str, str]) -> list[dict]:
    target.mkdir(parents=True, exist_ok=True)  # rank 0 made it, but a network file system may show it here later
    return [_write_file(target / name, tensors, metadata) for name, tensors in contents.items()]


def _write_file(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> dict:
    try:
        downloaded = {name: download(tensor) for name, tensor in tensors.items()}
        save_file(downloaded, path, metadata if path.name == STATE else None)
        durable.fsync(path)
    except SafetensorError as error:
        raise OSError(f"{path}: cannot write the checkpoint: {error}") from error
    except OSError as error:
        raise OSError(f"{path}: cannot write the checkpoint: {error.strerror or error}") from error
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": files.file_hash(path)}


def _write_manifest(target: Path, entries_by_rank: list[list[dict]], progress: Progress, graph: str) -> None:
    manifest = {
        "format": FORMAT, "format_version": VERSION, "created_by": f"hpcgnn {__version__}", "graph": graph,
        "files": [entry for entries in entries_by_rank for entry in entries], "progress": asdict(progress),
    }  # fmt: skip
    content = json.dumps(manifest, indent=1).encode()
    # The seal first: with its manifest a folder is a checkpoint.
    (target / SEAL).write_bytes(seal_of(content))
    durable.fsync(target / SEAL)
    temporary = target / f"{MANIFEST}.tmp"
    temporary.write_bytes(content)
    durable.commit(temporary, target / MANIFEST)
    durable.fsync(target.parent)


def prune(folder: Path, best_epoch: int, keep: int, waiting: set[Path]) -> list[Path]:
    """Take the manifests out of all checkpoints, except the ``keep`` newest complete step checkpoints, the best one and
    the ones being written. Returns the folders of the other checkpoints, unfinished ones included."""
    staying = {*step_checkpoints(folder)[-keep:], folder / best_tag(best_epoch), *waiting}
    stale = [path for path in (*folder.glob("step-*"), *folder.glob("best-*")) if path not in staying]
    for path in stale:
        (path / MANIFEST).unlink(missing_ok=True)
    return stale


def _remove_folders(folders: list[Path]) -> None:
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a checkpoint, its manifest first: a run that is killed here leaves no checkpoint."""
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


HEADS = ("decoder.", "edge_type.", "head.", "heads.")  # how the names of the weights of a task begin


def load(session: Session, path: Path) -> State:
    """Collective. Load weights and node memory of a checkpoint into a session; returns the whole state. Raises
    DistributedError where ranks find other files there, or have other weights then."""
    with together(session.world, "read checkpoint"):
        is_there = await_files([path / MANIFEST]) is None  # on a network file system maybe a little later
        seal = files.file_hash(path / MANIFEST)[:16] if is_there else "no file"
    same_everywhere(session.world, {str(path / MANIFEST): seal}, "name a run folder that all machines share")
    with together(session.world, "read checkpoint"):
        state, names = checkpoint.load_state(path, session.partition.graph_hash, checkpoint.share_of(session.world))
        _set_weights(session.model, checkpoint.named(state.tensors, checkpoint.MODEL), path)
        _set_buffers(session.model, checkpoint.named(state.tensors, checkpoint.BUFFER), path)
    state.scores = checkpoint.load_scores(path, state.tensors, session.world.job)
    checkpoint.load_memory(path, names, session.memory, session.partition, session.world, session.graph.channel)
    session.task.restore_state(state.tensors)
    check_model(session.model, session.world, session.config.model.class_path)
    return state


@dataclass(frozen=True, slots=True)
class Carried:
    """Learnable node embeddings after a change of the graph, on all ranks. nodes: nodes of this graph that have one;
    found: nodes whose embedding came from the other graph; both 0 for a model without embeddings."""

    nodes: int = 0
    found: int = 0

    def notes(self) -> list[str]:
        """Describe it in a text; no text without embeddings."""
        if not self.nodes:
            return []
        return [f"{self.found} of {self.nodes} nodes were in the graph of the run, the others have new embeddings"]


def load_elsewhere(session: Session, path: Path, trained_on: str) -> Carried:
    """Collective. Load the weights of a checkpoint into a session on another graph. Learnable node embeddings follow
    the original ids of the nodes that both graphs have; node memory is formed anew.

    trained_on: partition set of the run's graph, read where the model has learnable node embeddings. Raises
    DistributedError for weights that do not fit, and for a set of another graph.
    """
    with together(session.world, "read checkpoint"):
        tensors = checkpoint.load_tensors(path)
        _set_weights(session.model, checkpoint.named(tensors, checkpoint.MODEL), path)
        _set_buffers(session.model, checkpoint.named(tensors, checkpoint.BUFFER), path)
    check_model(session.model, session.world, session.config.model.class_path)
    session.memory.reset()
    carried = _carry(session, path, trained_on)
    if session.rebuild is not None:
        session.rebuild(session)
    return carried


def _carry(session: Session, path: Path, trained_on: str) -> Carried:
    """Collective. Bring the learnable embeddings of a checkpoint, if the session has any."""
    learned, kind = session.memory.num_learned, session.config.KIND
    if learned is None:
        return Carried()
    world, partition, channel = session.world, session.partition, session.graph.channel
    with together(world, "read the nodes of the run's graph"):
        manifest = checkpoint.read_manifest(path, checkpoint.NO_FILES)
        graph, rows, names = read_names(trained_on, world.rank, world.size, kind)
        if graph != manifest["graph"]:
            raise ValueError(
                f"{trained_on}: holds another graph than the run was trained on, whose nodes have its learnable "
                "embeddings: keep that partition set"
            )
        own_names = read_names(session.path, world.rank, world.size, kind)[2]
    ids = find_by_name(own_names, partition.book.local_to_global(world.rank), names, world, channel)
    total = int(world.reduce_array(np.array([rows.max(initial=-1)]), "max")[0]) + 1
    directory = NodeDirectory(world, channel, rows, ids, max(1, total))
    entries = [entry for entry in manifest["files"] if entry["name"].startswith("memory-")]
    count = checkpoint.carry_rows(path, entries, session.memory, partition.book, directory, world, channel)
    found, nodes = world.reduce_array(np.array([count, learned], np.int64))
    return Carried(int(nodes), int(found))


def _set_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Copy weights in place: parameters are views into the flat buffer. Raises ValueError for those of another
    model."""
    parameters = dict(model.named_parameters())
    needed, stored = ({(n, *p.shape) for n, p in named.items()} for named in (parameters, weights))
    if needed != stored:
        raise ValueError(
            f"{path}: the weights do not fit the configured model ({_first(stored - needed)} where it has "
            f"{_first(needed - stored)}): use the model section of that run and the hpcgnn that wrote it, or train anew"
        )
    for name, parameter in parameters.items():
        parameter.data.copy_(weights[name])


def _set_buffers(model: torch.nn.Module, stored: dict[str, torch.Tensor], path: Path) -> None:
    """Copy buffers in place. Raises ValueError where the checkpoint has not all of them."""
    for name, buffer in checkpoint.buffers_of(model).items():
        if name not in stored or stored[name].shape != buffer.shape:
            raise ValueError(
                f"{path}: holds no buffer {name} {[*buffer.shape]}, which the configured model has: train anew, or "
                "register it as not persistent if it never changes"
            )
        buffer.copy_(stored[name])


def _first(weights: set[tuple]) -> str:
    """Name the first of some weights, with its shape."""
    name, *shape = min(weights, default=("nothing",))
    return f"{name} {shape}" if shape else name


def initialize(session: Session, folder: Path) -> str:
    """Collective. Start training from the best weights of a finished run, and from its learnable node embeddings, by
    original ids. The head stays new where the run had another task. Returns a text about loaded and new weights.

    Raises DistributedError when nothing fits, or when ``task.freeze`` would leave parts that do not fit untrained.
    """
    with together(session.world, "read train.init"):
        best = checkpoint.find_best(folder / "checkpoints")
        if best is None:
            raise ValueError(f"train.init {folder}: no best checkpoint there: name the folder of a finished run")
        tensors, freeze = checkpoint.load_tensors(best), getattr(session.config.task, "freeze", False)
        kind, trained_on = checkpoint.task_and_data(best)
        with_head = kind == session.config.task.kind and session.schema.has_outputs_of(checkpoint.recorded_schema(best))
        new = _copy_weights(session.model, checkpoint.named(tensors, checkpoint.MODEL), best, freeze, with_head)
        stored = checkpoint.named(tensors, checkpoint.BUFFER)
        for name, buffer in checkpoint.buffers_of(session.model).items():
            if (with_head or not name.startswith(HEADS)) and name in stored and stored[name].shape == buffer.shape:
                buffer.copy_(stored[name])
    check_model(session.model, session.world, session.config.model.class_path)
    carried = _carry(session, best, trained_on)
    return "; ".join([f"weights from {best}", *([f"new: {', '.join(new)}"] if new else []), *carried.notes()])


def _copy_weights(
    model: torch.nn.Module, weights: dict[str, torch.Tensor], path: Path, complete: bool, with_head: bool
) -> list[str]:
    """Copy the weights that fit by name and shape; returns the names of the others, the head as one. complete: all but
    the head must fit; with_head: the head's weights are copied, too."""
    parameters = dict(model.named_parameters())
    taken = [name for name in parameters if with_head or not name.startswith(HEADS)]
    fitting = [name for name in taken if name in weights and weights[name].shape == parameters[name].shape]
    others = [name for name in parameters if name not in fitting and not name.startswith(HEADS)]
    if not fitting:
        raise ValueError(f"{path}: none of its weights fits the configured model: use the model section of that run")
    if complete and others:
        raise ValueError(
            f"{path}: {', '.join(others)} do not fit, and task.freeze would leave them untrained: use the model, "
            "memory and sampling sections of that run, or freeze false"
        )
    for name in fitting:
        parameters[name].data.copy_(weights[name])
    is_new = any(name.startswith(HEADS) and name not in fitting for name in parameters)
    return [*others, *(["head"] if is_new else [])]
