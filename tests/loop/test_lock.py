"""One job holds a run folder: who holds it is named, what a killed job left behind is recognized."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop import lock
from hpcgnn.loop.lock import LOCK, Holder, RunLock, held

pytestmark = pytest.mark.serial
ELSEWHERE = {"host": "node7", "machine": "another boot", "job": "77"}


@pytest.fixture
def quick(monkeypatch):
    """Locks whose times move fast."""
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "STALE_SECONDS", 2.0)
    monkeypatch.setattr(lock, "LOOK_SECONDS", 0.02)


def take(folder, told=None) -> RunLock:
    """Hold a folder; what is said goes into ``told``."""
    own = RunLock(folder, pytest.fail)
    own.acquire((told if told is not None else []).append, lambda *_: None)
    return own


def write(folder, **changes) -> None:
    """A lock of this process, but for the changes."""
    (folder / LOCK).write_text(json.dumps(asdict(replace(Holder.this_process(), **changes))))


def other_process(program: str, *arguments) -> subprocess.Popen:
    """A process that has the module ``lock``."""
    program = f"import sys, os, time; from pathlib import Path; from hpcgnn.loop import lock; {program}"
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


HOLD = "lock.RunLock(Path(sys.argv[1]), print).acquire(print, print); print('held', flush=True); time.sleep(60)"


def test_a_living_process_is_named(tmp_path, monkeypatch):
    """With host, process id, job, time and the remedy; at its end the folder is free, and no file is left."""
    monkeypatch.setenv("SLURM_JOB_ID", "123")
    first = take(tmp_path)
    words = r"is in use by job 123, process \d+ on \S+ since 2.*: wait for its end"
    with pytest.raises(ValueError, match=words) as caught:
        take(tmp_path)
    assert f"process {os.getpid()} on" in str(caught.value)
    assert f"delete {tmp_path / LOCK}" in str(caught.value)
    first.release()
    assert list(tmp_path.iterdir()) == []
    take(tmp_path).release()


def test_a_killed_process_does_not_hold(tmp_path):
    """Nor does one that is a zombie, as its parent has not asked for its exit code."""
    with other_process(HOLD, tmp_path) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"process {process.pid} on"):
            take(tmp_path)
        process.kill()
        deadline = time.monotonic() + 60
        while lock.process_began(process.pid) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        told = []
        take(tmp_path, told).release()
        assert f"left behind by process {process.pid} on" in told[0]


def test_a_process_id_is_used_again(tmp_path):
    """It belongs to another process, which began at another time."""
    write(tmp_path, began="1")
    take(tmp_path).release()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", ["", "{", "[1]", "null", json.dumps({"host": "a"})])
def test_a_lock_that_says_nothing(tmp_path, text):
    """Its writer was killed: it stands still."""
    (tmp_path / LOCK).write_text(text)
    take(tmp_path).release()


@pytest.mark.usefixtures("quick")
def test_another_machine(tmp_path):
    """Its process cannot be seen: its lock's time has to move, be it in the past or in the future."""
    for second in (1, 2_000_000_000, 9_000_000_000):
        write(tmp_path, **ELSEWHERE)
        os.utime(tmp_path / LOCK, (second, second))
        told = []
        take(tmp_path, told).release()
        assert "still held by job 77, process" in told[0]
        assert "node7" in told[1]
    write(tmp_path, **ELSEWHERE)
    end = threading.Event()

    def beat():
        for number in range(1, 10_000):
            os.utime(tmp_path / LOCK, (number, number))
            if end.wait(0.1):
                break

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(ValueError, match=r"in use by job 77, process \d+ on node7"):
            take(tmp_path)
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize(("before", "now", "is_gone"), [("", "1", True), ("1", "2", True), ("1", "1", None)])
def test_an_earlier_start_of_the_same_job(monkeypatch, before, now, is_gone):
    """Slurm ended it; another step of the same start may be alive."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", now)
    here = Holder.this_process()
    assert replace(here, restarts=before, machine="another boot").is_gone(here) is is_gone
    assert replace(here, restarts=before, machine="another boot", job="").is_gone(replace(here, job="")) is None


@pytest.mark.usefixtures("quick")
def test_the_time_of_a_held_lock_moves(tmp_path):
    own = take(tmp_path)
    first = (tmp_path / LOCK).stat().st_mtime_ns
    deadline = time.monotonic() + 60
    while (tmp_path / LOCK).stat().st_mtime_ns == first:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    own.release()


@pytest.mark.usefixtures("quick")
def test_a_lock_that_was_deleted_or_replaced(tmp_path):
    """A deleted one is written again; another job's ends this one, and stays."""
    lost = threading.Event()
    own = RunLock(tmp_path, lambda text: lost.set() if "taken over by job 77" in text else None)
    own.acquire(print, lambda *_: None)
    (tmp_path / LOCK).unlink()
    deadline = time.monotonic() + 60
    while not (tmp_path / LOCK).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    write(tmp_path, **ELSEWHERE)
    assert lost.wait(60)
    own.release()
    assert "node7" in (tmp_path / LOCK).read_text()


@pytest.mark.parametrize("text", ["", " ", "~"])
def test_only_a_lock_of_its_own_is_taken_away(tmp_path, monkeypatch, text):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 100.0)
    own = RunLock(tmp_path, lambda text: None)
    own.acquire(print, lambda *_: None)
    (tmp_path / LOCK).write_text(text)
    own.release()
    assert (tmp_path / LOCK).read_text() == text


def test_a_lock_that_changes_hands_meanwhile(tmp_path, monkeypatch):
    """Gone when it is read, another one when it is watched, or when it is taken away: that one is given back."""
    own = RunLock(tmp_path, pytest.fail)
    assert own._take_away("old") is False
    (tmp_path / LOCK).write_text("new")
    assert own._take_away("old") is False
    with monkeypatch.context() as patch:
        patch.setattr(own, "_read", lambda: "old")  # a moment before
        assert own._take_away("old") is False
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert (tmp_path / LOCK).read_text() == "new"
    assert own._watch("old", lambda *_: None) is None
    (tmp_path / LOCK).unlink()
    created = iter([False])
    create = RunLock._create
    monkeypatch.setattr(RunLock, "_create", lambda self: next(created, None) is None and create(self))
    own.acquire(pytest.fail, lambda *_: None)
    own.release()


def test_processes_that_cannot_be_seen(monkeypatch):
    """One that is none, one that the system tells nothing of, and a system without names of its boots."""
    assert lock.process_began(1 << 22) is None
    assert lock.process_began(os.getpid())

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(lock.Path, "read_text", refuse)
    assert lock.process_began(os.getpid()) == ""
    assert lock.this_machine() == lock.socket.gethostname()


def test_a_lock_that_is_taken_from_its_finder_is_not_held(tmp_path, monkeypatch):
    """Another one, late with the dead one's lock, moves it aside for a moment, in which a third one starts."""
    write(tmp_path, began="1")
    third, create = json.dumps(asdict(replace(Holder.this_process(), pid=os.getppid(), began=""))), RunLock._create

    def create_and_lose(own: RunLock) -> bool:
        is_made = create(own)
        if is_made:
            (tmp_path / LOCK).write_text(third)
        return is_made

    monkeypatch.setattr(RunLock, "_create", create_and_lose)
    with pytest.raises(ValueError, match=f"is in use by process {os.getppid()} "):
        take(tmp_path)


def test_one_of_many_wins(tmp_path):
    """Of processes that find the same lock of a dead one at the same time."""
    write(tmp_path, began="1")
    program = """
go = Path(sys.argv[1]) / 'go'
own = lock.RunLock(Path(sys.argv[1]), print)
print('ready', flush=True)
while not go.exists():
    pass
try:
    own.acquire(lambda text: None, lambda *_: None)
    print('held', flush=True)
    time.sleep(60)
except ValueError as error:
    print('refused', flush=True)
"""
    processes = [other_process(f"exec({program!r})", tmp_path) for _ in range(4)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
        (tmp_path / "go").touch()
        assert sorted(process.stdout.readline() for process in processes) == ["held\n"] + ["refused\n"] * 3
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_block_holds_the_folder(tmp_path):
    """The folder is made; an error in the block frees it; a second job is refused on all ranks as wrong input."""
    world = World(CommConfig(device="cpu", threads=1))
    folder = tmp_path / "runs" / "one"
    refused = pytest.raises(DistributedError, match="is in use by process")
    with refused as caught, held(folder, world, print), held(folder, world, print):
        pass
    assert caught.value.user_error
    assert list(folder.iterdir()) == []
