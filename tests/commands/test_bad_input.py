"""What a user or a machine can do wrong ends in seconds, in one line that says what and where; nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from places import HELPERS
from random_graphs import write_graph
from run_commands import run
from training_runs import bipartite

from data_tools import convert
from data_tools.partition import command as partitioner
from data_tools.partition.command import partition
from data_tools.team import run_team
from hpcgnn.graph import files

CHILD = HELPERS / "broken_train.py"
LIMIT = 60
SMALL = [
    "--train.batch_size=50", "--train.epochs=1", "--train.log_every=1", "--memory.dim=8", "--model.time_dim=8",
    "--model.hidden=8", "--comm.threads=1", "--comm.device=cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A folder with a graph file and two partition sets of it."""
    folder = tmp_path_factory.mktemp("good")
    bipartite(folder / "graph.h5", edge_width=2)
    partition(folder / "graph.h5", folder / "parts", 6)
    partition(folder / "graph.h5", folder / "other", 6, seed=1)
    return folder


@pytest.fixture
def parts(good, tmp_path):
    """A partition set to damage."""
    return Path(shutil.copytree(good / "parts", tmp_path / "parts"))


def one_line(result, code: int) -> str:
    """The only message of a job that ended with this exit code, without a traceback."""
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    (message,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return message


@pytest.mark.serial
def test_torchrun_starts_no_trainings_side_by_side(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "hpcgnn.train"]
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "SLURM_"))}
    told = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=LIMIT)
    assert told.returncode != 0
    assert told.stderr.count("torchrun starts no MPI job; use mpirun -np 2 or srun in its place") >= 1, told.stderr
    assert "exitcode  : 2" in told.stderr
    assert not list(tmp_path.iterdir())  # no run was begun


def refuse(jobs, *arguments, ranks: int = 2, code: int = 2) -> str:
    """The message of a training job that is refused."""
    return one_line(jobs(ranks, "train", *SMALL, *arguments, check=False, timeout=LIMIT), code)


# -------------------------------------------------------------------------------------------------- commands


def partition_command(argv: list[str]) -> int:
    """``hpcgnn partition``, in this process."""
    return run_team(lambda team: partitioner.main(argv, team))


@pytest.fixture
def message_of(capsys):
    """A callable that runs the ``main`` of a data tool in this process; returns the message of what it refuses."""

    def run_main(main, *arguments) -> str:
        capsys.readouterr()
        assert main(list(map(str, arguments))) == 2
        (message,) = capsys.readouterr().err.splitlines()
        return message

    return run_main


@pytest.mark.serial
def test_the_largest_time_is_kept(tmp_path):
    (tmp_path / "events.csv").write_text(f"src,dst,time\n1,2,-5\n2,1,{2**63 - 1}\n")
    arguments = ["--preset", "csv-temporal", "--set", f"events={tmp_path}/events.csv", tmp_path / "graph.h5"]
    assert convert.main(list(map(str, arguments))) == 0
    with h5py.File(tmp_path / "graph.h5") as file:
        assert file["edges/node.to.node/time"][:].tolist() == [-5, 2**63 - 1]


def bad_graph(path, **columns):
    """A graph file of ten events with some columns replaced, or left out where None."""
    edges = {"src": np.arange(10) % 4, "dst": np.arange(10) % 3, "time": np.arange(10), **columns}
    edges = {name: values for name, values in edges.items() if values is not None}
    nodes = {"user": {"id": np.arange(4)}, "item": {"id": np.arange(3)}}
    return write_graph(path, nodes, {("user", "takes", "item"): edges})


GRAPH_CASES = {
    "id too large": ({"dst": np.array([0] * 7 + [3, 0, 0])}, ["/dst", "row 7", "id 3", "'item'"]),
    "negative id": ({"src": np.array([0] * 9 + [-1])}, ["/src", "row 9", "id -1", "'user'"]),
    "unsorted": ({"time": np.array([*range(9), 2])}, ["/time", "row 9", "sort"]),
    "NaN time": ({"time": np.array([*range(9), np.nan])}, ["/time"]),
    "NaN feature": ({"feat": np.array([[0.0]] * 4 + [[np.nan]] + [[0.0]] * 5)}, ["/feat", "row 4"]),
    "no time": ({"time": None}, ["time", "user.takes.item"]),
}


@pytest.mark.serial
@pytest.mark.parametrize("case", GRAPH_CASES)
def test_partition_refuses(message_of, tmp_path, case):
    """Ids, times and features of a graph file, by file, dataset and row; no set is left behind."""
    columns, words = GRAPH_CASES[case]
    graph = bad_graph(tmp_path / "graph.h5", **columns)
    message = message_of(partition_command, graph, tmp_path / "parts", "--parts", "2")
    assert all(word in message for word in [str(graph), *words]), message
    assert not files.book_path(tmp_path / "parts").exists()


# --------------------------------------------------------------------------------------------- partition sets


@pytest.mark.serial
def test_a_table_given_as_a_graph_names_the_tool_that_reads_it(message_of, tmp_path):
    (tmp_path / "events.csv").write_text("src,dst,time\n1,2,3\n")
    message = message_of(partition_command, tmp_path / "events.csv", tmp_path / "parts")
    assert message.endswith("events.csv: no HDF5 file; hpcgnn convert makes a graph file of tables and arrays")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def change_version(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 999
    if path == files.book_path(path.parent):
        files.seal(path)


def drop_time(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["edges/user.takes.item/time"]


SET_CASES = {
    "truncated part": ("part-4.h5", truncate, [], ["damaged"]),
    "truncated part, no hashes": ("part-4.h5", truncate, ["--data.check_hash=false"], ["truncated"]),
    "truncated book": ("book.h5", truncate, [], ["damaged", "partition again"]),
    "flipped byte": ("part-4.h5", flip_byte, [], ["hash", "damaged", "hpcgnn verify"]),
    "missing part": ("part-4.h5", Path.unlink, [], ["no such file"]),
    "missing book": ("book.h5", Path.unlink, [], ["no such file", "no partition set"]),
    "version of a part": ("part-4.h5", change_version, [], ["version", "partition again"]),
    "version of a part, no hashes": (
        "part-4.h5",
        change_version,
        ["--data.check_hash=false"],
        ["version 999", "reads"],
    ),
    "version of the book": ("book.h5", change_version, [], ["version 999", "write the file anew"]),
    "missing column": ("part-4.h5", drop_time, ["--data.check_hash=false"], ["no column time", "hpcgnn verify"]),
}


@pytest.mark.launcher
@pytest.mark.parametrize("case", SET_CASES)
def test_damaged_sets_are_refused(jobs, parts, tmp_path, case):
    """One file of the set is damaged, rank 1's: named, with the remedy, before anything is trained."""
    name, damage, options, words = SET_CASES[case]
    damage(parts / name)
    message = refuse(jobs, f"--data.path={parts}", f"--output.dir={tmp_path / 'run'}", *options)
    assert all(word in message for word in [str(parts / name), *words]), message
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.launcher
@pytest.mark.parametrize("options", [[], ["--data.check_hash=false"]])
def test_a_part_of_another_set_is_refused(jobs, good, parts, tmp_path, options):
    """Two sets of the same graph, mixed."""
    shutil.copy(good / "other" / "part-4.h5", parts)
    message = refuse(jobs, f"--data.path={parts}", f"--output.dir={tmp_path / 'run'}", *options)
    assert "part-4.h5" in message
    assert "another partition set" in message or "different sets are mixed" in message
    assert "partition again into an empty folder" in message


@pytest.mark.launcher
def test_more_ranks_than_parts(jobs, good, tmp_path):
    """Named with both remedies."""
    partition(good / "graph.h5", tmp_path / "two", 2)
    message = refuse(jobs, f"--data.path={tmp_path / 'two'}", f"--output.dir={tmp_path / 'run'}", ranks=3)
    assert "3 ranks but only 2 parts: start at most 2 ranks, or partition again with --parts 3" in message


# ---------------------------------------------------------------------------------------------- configuration

ARGUMENT_CASES = {
    "misspelt": (["--train.epoch=3"], ["train.epoch"]),
    "out of range": (["--train.lr=-1"], ["train.lr"]),
    "wrong type": (["--train.epochs=many"], ["train.epochs"]),
    "choice": (["--sampling.strategy=newest"], ["sampling.strategy", "recent, uniform", "'newest'"]),
    "heads": (["--model.heads=3"], ["model.heads (3)", "model.hidden (8)"]),
    "fractions": (["--data.val_ratio=0.6", "--data.test_ratio=0.6"], ["data.val_ratio"]),
    "no folder": (["--data.path=/nowhere/parts"], ["/nowhere/parts: no such folder", "hpcgnn partition"]),
    "no resume": (["--resume=/nowhere/run"], ["/nowhere/run/config.yaml", "run folder"]),
    "no config": (["--config=/nowhere/run.yaml"], ["/nowhere/run.yaml"]),
    "no GPU": (["--comm.gradients=nccl"], ["comm.gradients"]),
}


@pytest.mark.launcher
@pytest.mark.parametrize("case", ARGUMENT_CASES)
def test_bad_arguments_are_refused(jobs, good, tmp_path, case):
    """By key and value."""
    arguments, words = ARGUMENT_CASES[case]
    message = refuse(jobs, f"--data.path={good / 'parts'}", f"--output.dir={tmp_path / 'run'}", *arguments)
    assert all(word in message for word in words), message


@pytest.mark.launcher
def test_misspelt_key_in_a_file(jobs, tmp_path):
    """The run file and the key are named."""
    (tmp_path / "run.yaml").write_text("train:\n  epochs: 1\n  batchsize: 100\n")
    message = refuse(jobs, f"--config={tmp_path / 'run.yaml'}", f"--output.dir={tmp_path / 'run'}")
    assert "batchsize" in message


@pytest.mark.launcher
def test_help_reaches_the_end_on_all_ranks(jobs):
    """Rank 0 prints it, and no rank waits for another."""
    for option in ("--help", "--print_config"):
        result = jobs(2, "train", option, timeout=LIMIT)
        assert "batch_size" in result.stdout


@pytest.mark.launcher
def test_output_folder_that_cannot_be(jobs, good, tmp_path):
    """Below a regular file, which not even root can write to."""
    (tmp_path / "file").write_text("")
    message = refuse(jobs, f"--data.path={good / 'parts'}", f"--output.dir={tmp_path / 'file' / 'run'}", code=1)
    assert str(tmp_path / "file") in message


# -------------------------------------------------------------------------------------------------- full disk


@pytest.mark.launcher
def test_full_disk(jobs, good, small_disk):
    """A checkpoint that does not fit: exit code 1, the file named, the older one whole; later it goes on from there."""
    run = small_disk / "run"
    arguments = [*SMALL, "--train.epochs=2", f"--data.path={good / 'parts'}", f"--output.dir={run}"]
    jobs(2, "train", *arguments, "--train.epochs=1", timeout=LIMIT)
    older = sorted(p.name for p in (run / "checkpoints").glob("step-*"))
    ballast = small_disk / "ballast"
    size = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    ballast.write_bytes(bytes(size - 12_000))
    message = refuse(jobs, f"--resume={run}", "--train.epochs=2", "--train.log_every=1", code=1)
    assert str(run) in message
    assert "No space left" in message
    assert sorted(p.parent.name for p in (run / "checkpoints").glob("step-*/manifest.json")) == older
    ballast.unlink()
    jobs(2, "train", f"--resume={run}", "--train.epochs=2", timeout=LIMIT)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [0, 1]
    steps = [(line["epoch"], line["step"]) for line in lines if line["kind"] == "step"]
    assert len(set(steps)) == len(steps) == 2 * (1 + max(step for _, step in steps))


# ----------------------------------------------------------------------------------------- ranks that go astray


def broken(mpirun, good, tmp_path, how: str, *more, **launch):
    """A job whose rank 1 misbehaves before its third step; returns the result and the seconds from there."""
    arguments = [*SMALL, f"--data.path={good / 'parts'}", f"--output.dir={tmp_path / 'run'}", *more]
    begin = time.monotonic()
    result = mpirun(2, CHILD, how, 3, 1, *arguments, check=False, timeout=LIMIT, **launch)
    return result, time.monotonic() - begin


@pytest.mark.launcher
@pytest.mark.parametrize("how", ["raise", "exit3", "exit0"])
def test_a_rank_that_leaves_ends_the_job(mpirun, good, tmp_path, how):
    """By an exception or by sys.exit, of any code: the job ends, and says which rank it was, on which host."""
    result, _ = broken(mpirun, good, tmp_path, how)
    assert result.returncode not in (0, 75)
    assert f"rank 1 of 2 on {socket.gethostname()}" in result.stderr
    assert ("KeyError" if how == "raise" else "SystemExit") in result.stderr


@pytest.mark.launcher
def test_a_rank_that_hangs_is_named(mpirun, good, tmp_path):
    """Stopped by a signal: the watchdog of another rank names it and ends the job."""
    result, seconds = broken(mpirun, good, tmp_path, "stop", "--comm.watchdog_seconds=10")
    assert result.returncode not in (0, 75)
    assert "no answer from rank 1" in result.stderr
    assert f"rank 0 on {socket.gethostname()} made no progress for 10 s" in result.stderr
    assert seconds < 50


@pytest.mark.launcher
def test_a_hang_ends_without_calls_from_several_threads(mpirun, good, tmp_path):
    """A rank that waits for a stopped one cannot ask it; it ends itself, and the launcher ends the job."""
    funneled = {"MPI4PY_RC_THREAD_LEVEL": "funneled"}
    result, _ = broken(mpirun, good, tmp_path, "stop", "--comm.watchdog_seconds=10", env=funneled)
    assert result.returncode not in (0, 75)
    assert f"rank 0 on {socket.gethostname()} made no progress for 10 s; other ranks were not checked" in result.stderr
    assert "each rank checks only itself" in result.stdout


@pytest.mark.serial
@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_copies_of_rank_0_are_refused(good, tmp_path, capsys, monkeypatch, variable):
    """A launcher that started four tasks, of which MPI knows nothing."""
    monkeypatch.setenv(variable, "4")
    assert run([["train", *SMALL, f"--data.path={good / 'parts'}", f"--output.dir={tmp_path / 'run'}"]]) == 2
    message = capsys.readouterr().err.splitlines()[0]
    assert message.startswith("error: ")
    assert f"{variable}=4, but MPI sees a single rank" in message
    assert "mpirun" in message
    assert not (tmp_path / "run").exists()
