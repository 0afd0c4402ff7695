"""What a machine lends to faults: a small disk, memory that ends, two machines with a cable. Needs root, on Linux."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup/memory")  # of version 1
AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# Of mpirun, which else waits 480 s for a daemon that is cut off.
KEEPALIVE = {"time": 5, "intvl": 2, "probes": 3}
BURST_SECONDS = 0.004  # at the full rate, which a shaped cable sends at once: the clock of kernels ticks so often

AGENT = """#!/usr/bin/env bash
# Starts a command on the other machine: AGENT HOST COMMAND...
shift
exec ip netns exec {namespace} unshare --uts bash -c 'hostname {name}; eval "$0"' "$*"
"""


class Missing(Exception):
    """This machine does not lend that."""


def find_mpirun() -> str | None:
    """The mpirun that belongs to this Python, or the first on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{' '.join(command)}: {getattr(error, 'stderr', '') or error}") from error


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of that size, at a folder."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "-l", str(folder))


def fill(disk: Path, leave: int = 0) -> Path:
    """Leave no room, or so many bytes; the file that takes the rest."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    os.truncate(ballast, max(0, ballast.stat().st_size - leave))
    return ballast


@contextlib.contextmanager
def memory_group(mebibytes: int) -> Iterator[Path]:
    """A control group whose processes may have so much memory together; they join it by their ids in cgroup.procs."""
    folder = CGROUPS / f"hpcgnn-fault-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(mebibytes << 20))
    except OSError as error:
        raise Missing(f"{folder}: {error}") from error
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(group: Path) -> None:
    """Its processes have ended, but it is busy for a moment."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


@dataclass
class Machines:
    """Two network namespaces, each with a host name of its own, and a virtual cable."""

    names: tuple[str, str]
    agent: Path
    seconds: float = KEEPALIVE["time"] + KEEPALIVE["intvl"] * KEEPALIVE["probes"]

    def launcher(self, mpirun: list[str], slots: int = 1) -> list[str]:
        """mpirun on the first machine, which starts so many ranks on each."""
        settings = {"plm_ssh_agent": self.agent}
        settings |= {f"oob_tcp_keepalive_{name}": value for name, value in KEEPALIVE.items()}
        words = [word for name, value in settings.items() for word in ("--prtemca", name, str(value))]
        command = [*mpirun, "--host", ",".join(f"{address}:{slots}" for address in ADDRESSES), *words]
        enter = 'hostname machine-a; exec "$@"'
        return ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "bash", "-c", enter, "machine-a", *command]

    def shape(self, gigabits: float) -> None:
        """Let each end of the cable send so many Gbit/s; 0: as fast as it goes."""
        for name in self.names:
            subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "cable", "root"], capture_output=True, timeout=60)
            if gigabits:
                burst = max(1 << 16, round(gigabits * 1e9 / 8 * BURST_SECONDS))
                bucket = ("rate", f"{gigabits}gbit", "burst", f"{burst}", "latency", "100ms")
                _run("tc", "-n", name, "qdisc", "add", "dev", "cable", "root", "tbf", *bucket)

    def sent(self) -> list[int]:
        """Bytes that each end of the cable has sent so far, headers included."""
        command = ("cat", "/sys/class/net/cable/statistics/tx_bytes")
        return [int(subprocess.check_output(["ip", "netns", "exec", name, *command])) for name in self.names]

    def cut(self) -> None:
        """Pull the cable."""
        _run("ip", "-n", self.names[0], "link", "set", "cable", "down")


@contextlib.contextmanager
def _one_scheduling_group() -> Iterator[None]:
    """Let the kernel share its cores among processes, not among sessions, until the end, where it may be told.

    Each machine's ranks are a session, and Linux 6.18 lets one whose ranks yield while they wait go without a core for
    minutes where the other one computes.
    """
    before = AUTOGROUPS.read_text() if os.access(AUTOGROUPS, os.W_OK) else ""
    if before:
        AUTOGROUPS.write_text("0")
    try:
        yield
    finally:
        if before:
            AUTOGROUPS.write_text(before)


@contextlib.contextmanager
def two_machines(folder: Path) -> Iterator[Machines]:
    """Two machines, until the end, for Open MPI's launcher."""
    mpirun = find_mpirun()
    if not mpirun or "Open MPI" not in subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout:
        raise Missing("Open MPI's mpirun, which can be told how to reach a machine")
    number = os.getpid()
    names = (f"hpcgnn-{number}-a", f"hpcgnn-{number}-b")
    agent = folder.with_name(f"{folder.name}-agent")
    agent.write_text(AGENT.format(namespace=names[1], name="machine-b"))
    agent.chmod(0o755)
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        ends = [["cable", "netns", name] for name in names]
        _run("ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "cable", "up")
        with _one_scheduling_group():
            yield Machines(names, agent)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=60)
