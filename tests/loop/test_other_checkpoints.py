"""Checkpoints that are not those of the run at hand: of another graph, model or version; what cannot be written."""

import errno
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from static_runs import make_static_parts, open_graph_session, plain, static_config

from hpcgnn import config as configuration
from hpcgnn import info, reopen
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import durable
from hpcgnn.graph.saved_rows import SavedRows
from hpcgnn.loop import checkpoint, checkpoint_writer
from hpcgnn.loop.checkpoint import Progress, State
from hpcgnn.loop.checkpoint_writer import CheckpointWriter
from hpcgnn.loop.logs import MetricsFile
from hpcgnn.snapshots.step import SequenceRows
from hpcgnn.temporal.config import BaselineConfig, TemporalConfig

pytestmark = pytest.mark.serial


@pytest.fixture
def written(tmp_path):
    """A checkpoint of one rank, with one row of node memory."""
    world = World(CommConfig(device="cpu", threads=1))
    writer = CheckpointWriter(tmp_path / "checkpoints", "graph", 2, world, Watchdog(world, 0), {})
    progress = Progress(global_step=1, step=1)
    memory = [SavedRows(torch.tensor([0]), {"state": torch.ones(1, 2)})]
    tag = checkpoint.step_tag(progress)
    for _ in range(2):  # the second one is under way already
        writer.add(tag, State(progress, {"model.w": torch.ones(3)}), memory, np.array([0]))
    assert len(writer._jobs) == 1
    writer.settle()
    writer.close()
    return tmp_path / "checkpoints" / tag


def change(folder, **changes) -> None:
    """Give a manifest other values, which nothing seals."""
    (folder / checkpoint.SEAL).unlink()
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest | changes))


def test_a_manifest_is_an_object(written):
    (written / checkpoint.SEAL).unlink()
    (written / checkpoint.MANIFEST).write_text("[]")
    with pytest.raises(ValueError, match=r"manifest\.json: expected an object; not a whole checkpoint"):
        checkpoint.read_manifest(written)


@pytest.mark.parametrize("other", [{"format_version": 99}, {"format": "another"}])
def test_another_version(written, other):
    change(written, **other)
    with pytest.raises(checkpoint.OtherVersionError, match="resume with the hpcgnn that wrote it, or train anew into"):
        checkpoint.read_manifest(written)


def test_memory_of_the_first_version_that_cannot_be_read(written):
    """Its layout is asked of its files."""
    (written / "memory-0.safetensors").write_bytes(bytes(64))
    files = json.loads((written / checkpoint.MANIFEST).read_text())["files"]
    listed = [entry | {"bytes": 64} if entry["name"].startswith("memory") else entry for entry in files]
    change(written, format_version=1, files=listed)
    with pytest.raises(ValueError, match=r"memory-0\.safetensors: missing or damaged: "):
        checkpoint.read_manifest(written)


@pytest.mark.parametrize("rank", [0, 1])
def test_training_scores_of_an_earlier_checkpoint(written, monkeypatch, rank):
    """They lie among the tensors of the state, and the first rank takes them over."""
    world = World(CommConfig(device="cpu", threads=1))
    monkeypatch.setattr(world, "rank", rank)
    scores = checkpoint.load_scores(written, {"model.w": torch.ones(3), "scores.positive": torch.ones(2)}, world)
    assert {name: values.tolist() for name, values in scores.items()} == {"positive": [1, 1] if rank == 0 else []}


def test_training_scores_that_cannot_be_read(written):
    (written / "scores-0.safetensors").write_bytes(bytes(64))
    files = json.loads((written / checkpoint.MANIFEST).read_text())["files"]
    entry = {"name": "scores-0.safetensors", "bytes": 64, "sha256": "0"}
    change(written, files=[*files, entry])
    with pytest.raises(DistributedError, match=r"scores-0\.safetensors: missing or damaged"):
        checkpoint.load_scores(written, {}, World(CommConfig(device="cpu", threads=1)))


def test_another_graph_and_other_progress(written):
    with pytest.raises(ValueError, match=r"written for another graph \(graph, this one is another\)"):
        checkpoint.load_state(written, "another")
    progress = json.loads((written / checkpoint.MANIFEST).read_text())["progress"]
    change(written, progress=progress | {"moon": 1})
    with pytest.raises(ValueError, match=r"another version of hpcgnn \(moon\); resume with that version"):
        checkpoint.load_state(written, "graph")


def test_rows_of_another_model_or_kind(tmp_path, written):
    """Columns that this run's rows have not; writes that wait, which no run on this kind of graph has."""
    config = static_config(node_embedding__types=["node"])
    session = open_graph_session(MPI.COMM_SELF, make_static_parts(MPI.COMM_SELF, plain, tmp_path), config)
    _, entries = checkpoint.load_state(written, "graph")
    with pytest.raises(DistributedError, match=r"memory-0\.safetensors: not the node memory of the configured model"):
        checkpoint.load_memory(
            written, entries, session.memory, session.partition, session.world, session.graph.channel
        )  # fmt: skip
    with pytest.raises(ValueError, match="has node memory, which runs on static graphs do not have"):
        session.memory.put_write([], session.graph.channel)
    session.close()
    rows = SequenceRows(torch.arange(2), {}, None, torch.float32)
    with pytest.raises(
        ValueError, match="has pending writes of node memory, which runs on snapshot graphs do not have"
    ):
        rows.put_write([], session.graph.channel)


def test_files_that_cannot_be_written(tmp_path, monkeypatch):
    tensors = {"state": torch.ones(2)}
    with pytest.raises(OSError, match=r"gone/memory-0\.safetensors: cannot write the checkpoint: .*No such file"):
        checkpoint_writer._write_file(tmp_path / "gone" / "memory-0.safetensors", tensors, {})

    def fail(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "fsync", fail)
    with pytest.raises(OSError, match=r"memory-0\.safetensors: cannot write the checkpoint: No space left on device$"):
        checkpoint_writer._write_file(tmp_path / "memory-0.safetensors", tensors, {})


def test_metrics_that_are_lost_or_cannot_be_written(tmp_path, monkeypatch):
    """A checkpoint remembers how long the file was."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    with pytest.raises(OSError, match=r"metrics\.jsonl: 3 bytes, but the checkpoint was written after 10: restore the"):
        MetricsFile(path, 10)

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match=r"metrics\.jsonl: cannot write: No space left on device"):
        MetricsFile(path).position()


@pytest.mark.parametrize(("number", "is_let_off"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_folders_that_cannot_be_synced(tmp_path, monkeypatch, number, is_let_off):
    def fail(descriptor):
        raise OSError(number, "sync")

    monkeypatch.setattr("os.fsync", fail)
    if is_let_off:
        assert durable.fsync(tmp_path) is None
    else:
        with pytest.raises(OSError, match="sync"):
            durable.fsync(tmp_path)


def test_info_tells_what_is_damaged(tmp_path, written):
    """A checkpoint that no rank has finished; one whose weights cannot be read; metrics of another program."""
    configuration.save(TemporalConfig(), {}, tmp_path / "config.yaml")
    (written.parent / "step-2").mkdir()
    lines, problems = info.describe_run(tmp_path, check=False)
    assert not problems
    assert "step-2: not finished, to be written anew" in lines
    state = written / checkpoint.STATE
    state.write_bytes(bytes(state.stat().st_size))
    _, problems = info.describe_run(tmp_path, check=False)
    assert len(problems) == 1
    assert f"{state}: damaged: " in problems[0]
    (tmp_path / "metrics.jsonl").write_text('{"kind": "epoch", "epoch": 1}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl: 'loss'; not written by hpcgnn"):
        info.describe_run(tmp_path, check=False)


def test_runs_without_a_best_epoch(tmp_path):
    config = TemporalConfig(baseline=BaselineConfig("unlimited"))
    with pytest.raises(ValueError, match="is a run of baseline unlimited: it has no model to open"):
        reopen.find_best(tmp_path, config)
    with pytest.raises(ValueError, match=f"no best checkpoint: .*; continue it with --resume {tmp_path}"):
        reopen.find_best(tmp_path, TemporalConfig())


def test_a_sound_checkpoint_that_does_not_fit_is_no_damage(tmp_path, written, monkeypatch):
    """It is told as it is."""
    graph = checkpoint.read_manifest(written)["graph"]
    session = SimpleNamespace(
        world=World(CommConfig(device="cpu", threads=1)), config=TemporalConfig(),
        partition=SimpleNamespace(graph_hash=graph),
    )  # fmt: skip

    def refuse(session, path):
        raise DistributedError("the weights do not fit", user_error=True)

    monkeypatch.setattr(reopen, "find_best", lambda folder, config: written)
    monkeypatch.setattr(reopen, "load", refuse)
    with pytest.raises(DistributedError, match=r"^the weights do not fit$"):
        reopen.load_best(session, str(tmp_path))
