"""Keeps two jobs out of one run folder: ``lock.json`` names the process that holds it, rank 0 of its job.

A process that was killed leaves its lock behind. On the same machine the next one sees that the process is gone. The
lock of another machine is alive as long as its time moves, which its holder sees to every BEAT_SECONDS; one whose time
stands still for STALE_SECONDS is taken over. So is, at once, the lock of an earlier start of the same Slurm job: Slurm
ended it before it started the job again. Clocks of machines are not compared.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcgnn.comm.launch import BATCH_JOBS
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.decode import decode_json

LOCK = "lock.json"
BEAT_SECONDS = 15.0
STALE_SECONDS = 180.0  # network file systems may show a file's time a minute late
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a run folder. machine: its boot and the namespace of its process id; began: when the process
    did, in the kernel's ticks; job, restarts: of the batch system, empty without one."""

    host: str
    machine: str
    pid: int
    began: str
    job: str
    restarts: str
    since: str

    @classmethod
    def this_process(cls) -> Holder:
        """Describe the running process."""
        job = next((os.environ[name] for name in BATCH_JOBS if os.environ.get(name)), "")
        return cls(
            socket.gethostname(), this_machine(), os.getpid(), process_began(os.getpid()) or "", job,
            os.environ.get("SLURM_RESTART_COUNT", ""), datetime.datetime.now().isoformat(" ", "seconds"),
        )  # fmt: skip

    @classmethod
    def from_text(cls, text: str) -> Holder | None:
        """Read the holder from a lock's text; None where the text is no holder, such as while it is written."""
        try:
            return cls(**decode_json(text))
        except (ValueError, TypeError):
            return None

    def is_gone(self, here: Holder) -> bool | None:
        """Say whether the process has ended, as another process, ``here``, sees it; None where that cannot be seen."""
        if self.machine == here.machine:
            began = process_began(self.pid)
            return began is None or (began != self.began and "" not in (began, self.began))
        is_same_job = self.job == here.job != ""
        return True if is_same_job and self.restarts != here.restarts else None

    def __str__(self) -> str:
        job = f"job {self.job}, " if self.job else ""
        return f"{job}process {self.pid} on {self.host} since {self.since}"


def this_machine() -> str:
    """Name this boot of the machine and the namespace of its process ids; its host's name where Linux reports
    neither."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def process_began(pid: int) -> str | None:
    """Return the start of a process in the kernel's ticks since the boot. Returns None where no such process runs, or
    only its exit code is left, and an empty text where the system does not report the start."""
    try:
        os.kill(pid, 0)
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except ProcessLookupError:
        return None
    except OSError:  # no /proc, or another user's process
        return ""
    return None if after_name[0] in "ZX" else after_name[19]


class RunLock:
    """Holds a run folder from ``acquire`` to ``release``; on_lost: called, in a thread, with a text when another
    process has taken the folder over."""

    def __init__(self, folder: Path, on_lost: Callable[[str], None]):
        self._path, self._on_lost = folder / LOCK, on_lost
        self._holder = Holder.this_process()
        self._text = json.dumps(asdict(self._holder), indent=1) + "\n"
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)

    def acquire(self, say: Callable[[str], None], working: Callable[..., None]) -> None:
        """Take the lock, where need be from a holder that is gone, which may take STALE_SECONDS to see; working: called
        meanwhile. Raises ValueError where a holder is alive."""
        found = False
        while not (self._create() and (not found or self._keeps())):
            text = self._read()
            if text is None:
                continue
            holder = Holder.from_text(text)
            is_gone = holder.is_gone(self._holder) if holder else None
            if is_gone is None:
                say(f"looking for up to {STALE_SECONDS:.0f} s whether {self._path} is still held by {holder or 'any'}")
                is_gone = self._watch(text, working)
            if is_gone is False:
                raise ValueError(
                    f"{self._path.parent} is in use by {holder or 'another process'}: wait for its end, or choose "
                    f"another output.dir; where that process is gone, delete {self._path}"
                )
            if is_gone and self._take_away(text):
                found = True
                say(f"{self._path} was left behind by {holder or 'a process'}, which is gone")
        self._thread.start()

    def release(self) -> None:
        """Give the folder back, if this process holds it."""
        self._released.set()
        if self._thread.is_alive():
            self._thread.join(BEAT_SECONDS)
            with contextlib.suppress(OSError):
                if self._read() == self._text:
                    self._path.unlink()

    def _create(self) -> bool:
        try:
            file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(file, self._text.encode())
        finally:
            os.close(file)
        return True

    def _keeps(self) -> bool:
        """Say whether this process still has the lock after a moment. Others may have found the same one of a dead
        holder: who is late takes this one aside until it has read it (see ``_take_away``), and a third one may come."""
        time.sleep(LOOK_SECONDS)
        return self._read() == self._text

    def _read(self) -> str | None:
        """Return what the lock says; None where there is none."""
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return None

    def _watch(self, text: str, working: Callable[..., None]) -> bool | None:
        """Watch a lock that says ``text``: whether its holder is gone, as its time does not move within STALE_SECONDS;
        None where the lock changes meanwhile."""
        deadline, first = time.monotonic() + STALE_SECONDS, None
        while self._read() == text:
            working("wait for the run folder's lock")
            with contextlib.suppress(FileNotFoundError):
                beat = self._path.stat().st_mtime_ns
                first = first or beat
                if beat != first:
                    return False
            if time.monotonic() > deadline:
                return True
            time.sleep(LOOK_SECONDS)
        return None

    def _take_away(self, text: str) -> bool:
        """Remove a lock that says ``text``; False where another one is there by now."""
        aside = self._path.with_name(f".{LOCK}-{self._holder.host}-{self._holder.pid}")
        if self._read() != text:
            return False
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return False
        is_right = aside.read_text() == text
        if not is_right:  # somebody was faster, and holds the folder now: what was taken is given back
            with contextlib.suppress(FileExistsError):
                os.link(aside, self._path)
        aside.unlink()
        return is_right

    def _beat(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a file system that does not answer now may do so later
                text = self._read()
                if text == self._text:
                    os.utime(self._path)
                elif text is None:
                    self._create()
                else:
                    holder = Holder.from_text(text) or "another process"
                    self._on_lost(f"{self._path.parent} was taken over by {holder}; this job ends")
                    return


@contextlib.contextmanager
def held(folder: Path, world: World, say: Callable[[str], None]) -> Iterator[None]:
    """Collective. Make a run folder and hold it for this job, within the block. Raises DistributedError where another
    one does; a job whose folder is taken over ends at once."""
    lock: Any = None

    def leave(message: str) -> None:
        print(f"hpcgnn: rank {world.rank} on {world.host}: {message}", file=sys.stderr, flush=True)
        world.abort(1)

    try:
        with together(world, "lock the run folder"):
            if world.rank == 0:
                folder.mkdir(parents=True, exist_ok=True)
                lock = RunLock(folder, leave)
                lock.acquire(say, world.working)
        yield
    finally:
        if lock is not None:
            lock.release()
