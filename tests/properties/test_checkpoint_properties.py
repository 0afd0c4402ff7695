"""Checkpoints with any damage: each read gives what was saved, or an error that names the file, and an older checkpoint
that is whole takes the place of a damaged one."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from same_verdict import same_verdict

from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph.book import Book
from hpcgnn.graph.saved_rows import NodeRowStore, SavedRows
from hpcgnn.loop import checkpoint
from hpcgnn.loop.checkpoint import Progress, State
from hpcgnn.loop.checkpoint_writer import CheckpointWriter

GRAPH, NODES = "0123456789abcdef" * 4, 11
CONFIG = {"train": {"seed": 7, "lr": 1e-3}, "output": {"keep": 2}}


def saved_at(step: int) -> tuple[Progress, dict[str, torch.Tensor]]:
    """What the checkpoint of a step holds besides rows of nodes."""
    progress = Progress(2, step, 10 * step, 0.1 * step, 12.5, 0.75, -1, 1, 4321)
    return progress, {"model.w": torch.full((2, 3), 1.0 / step), "adam.step": torch.tensor(step)}


def rows_at(step: int, owned: np.ndarray) -> list[SavedRows]:
    """Node memory of some nodes, and a write that waits."""
    every, half = torch.arange(len(owned)), torch.arange(len(owned) // 2)
    values = torch.from_numpy(owned * 1.0 + 100 * step)
    return [SavedRows(every, {"state": values[:, None]}), SavedRows(half, {"state": -values[half, None]})]


def pairs(saved: SavedRows) -> list[tuple[int, float]]:
    """Rows with their values."""
    return list(zip(saved.rows.tolist(), saved.columns["state"].ravel().tolist(), strict=True))


class Rows(NodeRowStore):
    """Keeps what is put into it, as lists of pairs of a row and its value."""

    def reset(self):
        self.memory, self.writes = [], []

    def saved(self):
        raise NotImplementedError

    def prototype(self):
        return {"state": torch.empty(0, 1, dtype=torch.float64)}

    def put(self, saved):
        self.memory += pairs(saved)

    def put_write(self, pieces, channel):
        self.writes.append([pair for piece in pieces for pair in pairs(piece)])


class Run:
    """Two checkpoints of a run, written by all ranks, and what a rank needs to read them."""

    def __init__(self, comm, folder):
        self.comm, self.folder = comm, folder
        self.world = World(CommConfig(device="cpu", threads=1, watchdog_seconds=0), comm)
        self.channel = self.world.channel()
        book = Book(np.linspace(0, NODES, self.world.size + 1).astype(np.int64)[None], self.world.size, ("node",))
        self.owned = book.local_to_global(self.world.rank)
        self.partition = SimpleNamespace(graph_hash=GRAPH, book=book, num_nodes=len(self.owned), flat_row=self.owned)
        writer = CheckpointWriter(folder / "whole", GRAPH, 2, self.world, Watchdog(self.world, 0), CONFIG)
        for step in (1, 2):
            state = State(*saved_at(step))
            writer.add(checkpoint.step_tag(state.progress), state, rows_at(step, self.owned), self.owned)
        writer.settle()
        writer.close()
        self.names = comm.bcast(sorted(path.name for path in self.path(2, "whole").iterdir()))

    def path(self, step, folder="damaged"):
        return self.folder / folder / checkpoint.step_tag(saved_at(step)[0])

    def copy(self) -> None:
        """Make what is to be damaged, anew."""
        shutil.rmtree(self.folder / "damaged", ignore_errors=True)
        shutil.copytree(self.folder / "whole", self.folder / "damaged")

    def read(self, step) -> None:
        """Collective. Read a checkpoint and compare all of it. Raises ValueError or DistributedError."""
        state, entries = checkpoint.load_state(self.path(step), GRAPH)
        rows = Rows()
        checkpoint.load_memory(self.path(step), entries, rows, self.partition, self.world, self.channel)
        progress, tensors = saved_at(step)
        assert asdict(state.progress) == asdict(progress)
        assert state.tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert state.tensors[name].dtype == tensor.dtype
            assert torch.equal(state.tensors[name], tensor)
        found = [sorted(values) for values in (rows.memory, *rows.writes)]
        assert found == [sorted(pairs(saved)) for saved in rows_at(step, self.owned)]


@pytest.fixture
def run(comm, mpi_tmp_path):
    return Run(comm, mpi_tmp_path)


def damage(path, kind: str, name: str, other: str, place: float, change: int) -> None:
    """Spoil a file of a checkpoint, at a place in 0..1 of it."""
    content = bytearray((path / name).read_bytes())
    at = min(int(place * len(content)), len(content) - 1)
    if kind == "flipped":
        content[at] ^= change
    elif kind == "cut":
        del content[at:]
    elif kind == "longer":
        content += content[at:]
    elif kind == "another":
        content = (path / other).read_bytes()
    elif kind == "twice":
        (path / f"{name}.copy").write_bytes(content)
    if kind == "removed":
        (path / name).unlink()
    elif kind != "twice":
        (path / name).write_bytes(content)


FILE = st.integers(0, 99)


@given(
    kind=st.sampled_from(["flipped", "flipped", "flipped", "cut", "longer", "another", "twice", "removed"]),
    file=FILE, other=FILE, place=st.floats(0, 1), change=st.integers(1, 255), step=st.sampled_from([2, 2, 1]),
)  # fmt: skip
@example(kind="flipped", file=0, other=0, place=0.97, change=1, step=2)
def test_a_damaged_checkpoint_gives_no_other_state(comm, run, kind, file, other, place, change, step):
    """Whichever of its files is damaged, however; nor does it hide the older one."""
    comm.barrier()
    if comm.rank == 0:
        run.copy()
        name = run.names[file % len(run.names)]
        damage(run.path(step), kind, name, run.names[other % len(run.names)], place, change)
    comm.barrier()
    with same_verdict(comm):
        message = ""
        try:
            run.read(step)
        except (ValueError, DistributedError) as error:
            message = str(error)
        assert not message or any(str(run.path(step) / name) in message for name in run.names)
    with same_verdict(comm):
        if step == 2:
            recorded = checkpoint.recorded_config(run.folder / "damaged")
            assert recorded in [(run.path(1).name, CONFIG), (run.path(2).name, CONFIG)]
        logged = []
        sound, _ = checkpoint.find_sound(run.folder / "damaged", run.world, logged.append)
        comm.barrier()
        if sound == run.path(2):
            run.read(2)
        else:
            assert step == 2
            assert sound == run.path(1)
            run.read(1)
            assert kind == "removed" or run.path(2).name in logged[0]


@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 9))
def test_no_number_of_a_manifest_can_be_another(comm, run, place, change):
    """Such as an epoch or a metric, in a text that still has its form."""
    comm.barrier()
    manifest = run.path(2) / checkpoint.MANIFEST
    if comm.rank == 0:
        run.copy()
        content = bytearray(manifest.read_bytes())
        digits = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
        at = digits[int(place * len(digits))]
        content[at] = ord("0") + (content[at] - ord("0") + change) % 10
        manifest.write_bytes(content)
    comm.barrier()
    with same_verdict(comm), pytest.raises(ValueError, match="its content does not match its hash in"):
        run.read(2)
    with same_verdict(comm):
        assert checkpoint.find_sound(run.folder / "damaged", run.world, print) == (run.path(1), True)
