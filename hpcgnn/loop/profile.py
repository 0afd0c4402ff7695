"""Records where the time of a run goes: stages.jsonl in the run folder, a table at the end, and traces of some steps.

R ranks of the job. Unlike metrics.jsonl, the lines of stages.jsonl depend on the machine: no two runs write the same,
and a resumed run appends to them. Bytes sent are from rank to rank [R, R] for up to MOST_PAIRED ranks; for more ranks,
from each rank to all others [R].
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity

from hpcgnn.comm.energy import EnergyMeter, find_counters
from hpcgnn.loop.logs import RunLog
from hpcgnn.loop.session import Session

MOST_PAIRED = 32
WAIT, CHECKPOINT = "wait for plan", "checkpoint"
EPOCH = "epoch"  # the time of a whole epoch, inside and outside of stages


class StageLog:
    """Collective to create and in ``epoch``. Sums up the seconds of stages; rank 0 writes. resumed: name of the
    checkpoint that the run resumes from."""

    def __init__(self, session: Session, folder: Path, resumed: str = ""):
        self._session, self._world = session, session.world.job
        self._path = folder / "stages.jsonl" if self._world.rank == 0 else None
        self._total: dict[str, np.ndarray] = {}
        self._sent, self._peak = np.zeros(self._world.size, np.int64), np.zeros(self._world.size)
        self._joules: dict[str, float] = {}
        self._end_line()
        hosts, gpus = zip(*self._world.allgather((self._world.host, _gpu_id(self._world.device))), strict=True)
        used = {gpu for gpu, host in zip(gpus, hosts, strict=True) if gpu and host == self._world.host}
        self._meter = EnergyMeter([] if self._world.local_rank else find_counters(sorted(used)))
        self._write(
            kind="start", ranks=self._world.size, threads=self._world.threads, hosts=hosts, resumed=resumed,
            device=self._world.device.type,
        )  # fmt: skip
        self.begin()

    def begin(self) -> None:
        """Begin an epoch, or what is left of it."""
        self._started = time.perf_counter()
        self._seconds_before, self._sent_before = self._seconds(), self._sent_to()
        self._joules_before = self._meter.joules()

    def epoch(self, number: int) -> None:
        """Collective. Write the stages of an epoch that is over, with validation and checkpoints."""
        own = {name: value - self._seconds_before.get(name, 0.0) for name, value in self._seconds().items()}
        own[EPOCH] = time.perf_counter() - self._started
        sent_to = self._sent_to() - self._sent_before
        joules = {part: value - self._joules_before[part] for part, value in self._meter.joules().items()}
        paired = sent_to if len(sent_to) <= MOST_PAIRED else sent_to.sum()
        by_rank = self._world.gather((own, paired, peak_mib(), (self._world.host, joules)))
        if by_rank is not None:
            stages, sent, peaks, energy = zip(*by_rank, strict=True)
            by_host = {host: parts for host, parts in energy if parts}
            self._add(number, stages, np.stack(sent), np.array(peaks), by_host)
        self.begin()

    def close(self) -> None:
        """End the thread that reads counters of energy."""
        self._meter.close()

    def table(self) -> list[str]:
        """Make lines of text, on rank 0: the seconds of every stage over all epochs since the start, as least, mean and
        most of the ranks. Bytes, memory and the imbalance of the ranks follow."""
        if EPOCH not in self._total:
            return []
        longest = self._total[EPOCH].max()
        lines = [f"{'seconds':18s} {'min':>9s} {'mean':>9s} {'max':>9s}"]
        for name in sorted(self._total, key=lambda name: -self._total[name].mean()):
            low, mean, high = self._total[name].min(), self._total[name].mean(), self._total[name].max()
            lines.append(f"{name:18s} {low:9.2f} {mean:9.2f} {high:9.2f}  {100 * mean / longest:5.1f} %")
        sent = self._sent / 2**20
        lines.append(f"{'MiB sent':18s} {sent.min():9.1f} {sent.mean():9.1f} {sent.max():9.1f}")
        lines.append(f"{'MiB of memory':18s} {self._peak.min():9.0f} {self._peak.mean():9.0f} {self._peak.max():9.0f}")
        if self._joules:
            used = np.array(list(self._joules.values())) / 1000
            lines.append(f"{'kJ of a machine':18s} {used.min():9.1f} {used.mean():9.1f} {used.max():9.1f}")
        if "compute" in self._total:
            compute = self._total["compute"]
            uneven = 100 * (compute.max() / max(compute.mean(), 1e-9) - 1)
            lines.append(f"the busiest rank computes {uneven:.0f} % longer than the mean")
        return lines

    def _add(
        self, number: int, stages: tuple[dict[str, float], ...], sent: np.ndarray, peaks: np.ndarray,
        joules: dict[str, dict[str, float]],
    ) -> None:  # fmt: skip
        names = sorted({name for of_rank in stages for name in of_rank})
        seconds = {name: [of_rank.get(name, 0.0) for of_rank in stages] for name in names}
        for name, values in seconds.items():
            self._total[name] = self._total.get(name, 0.0) + np.array(values)
        self._sent += sent if sent.ndim == 1 else sent.sum(axis=1)
        self._peak = np.maximum(self._peak, peaks)
        for host, parts in joules.items():
            self._joules[host] = self._joules.get(host, 0.0) + sum(parts.values())
        rounded = {host: {part: round(value, 3) for part, value in parts.items()} for host, parts in joules.items()}
        self._write(
            kind=EPOCH, epoch=number, seconds={name: np.round(values, 6).tolist() for name, values in seconds.items()},
            sent_bytes=sent.tolist(), peak_mib=np.round(peaks, 1).tolist(), joules=rounded or None,
        )  # fmt: skip

    def _seconds(self) -> dict[str, float]:
        """Return the seconds by stage so far; the planning thread's are "plan"."""
        return {**self._session.timers.seconds, **self._session.plan_timers.seconds}

    def _sent_to(self) -> np.ndarray:
        """Count the bytes sent so far to every rank of the job [R]; groups are of consecutive ranks."""
        sent, world = np.zeros(self._world.size, np.int64), self._session.world
        first = world.group * world.size
        for channel in self._session.channels():
            if channel.size == world.size:
                sent[first : first + world.size] += channel.sent()
        return sent

    def _end_line(self) -> None:
        """End a line that a killed run or a full disk cut off: what follows is not to be part of it."""
        if self._path is None or not self._path.exists():
            return
        with contextlib.suppress(OSError), open(self._path, "r+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")

    def _write(self, **values) -> None:
        if self._path is None:
            return
        line = {"time": datetime.datetime.now().astimezone().isoformat(timespec="milliseconds"), **values}
        with contextlib.suppress(OSError), open(self._path, "a") as file:  # a full disk is no reason to stop
            file.write(json.dumps(line) + "\n")


def _gpu_id(device: torch.device) -> str:
    """Return the UUID of a GPU, empty for other devices."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def peak_mib() -> float:
    """Return the most memory that this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Tracer:
    """Traces the steps that ``train.profile`` names, counted from the start of the run, into ``folder``; stages of the
    training thread are ranges in the trace. The end of an epoch ends the trace, too. Not collective."""

    def __init__(self, session: Session, folder: Path, log: RunLog):
        self._session, self._log, self._steps = session, log, session.config.train.profiled
        rank = session.world.job.rank
        self._path = folder / f"steps-{self._steps.start}-{self._steps.stop - 1}-rank-{rank}.json.gz"
        self._profiler: torch.profiler.profile | None = None

    def reached(self, done: int) -> None:
        """Begin or end the trace, if it is time for that after ``done`` steps of the run."""
        if self._profiler is not None:
            if done not in self._steps:
                self.end()
        elif done in self._steps:
            self._begin()

    def end(self) -> None:
        """End the trace, if one is under way, and write it."""
        if self._profiler is None:
            return
        self._profiler.stop()
        self._session.timers.mark = self._mark
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._profiler.export_chrome_trace(str(self._path))
            self._log(f"profile of steps {self._steps.start} to {self._steps.stop - 1} in {self._path.parent}")
        except OSError as error:  # a full disk is no reason to stop
            self._log(f"{self._path}: cannot write the profile: {error.strerror or error}", everywhere=True)
        self._profiler, self._steps = None, range(0)

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self._session.world.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self._mark, self._session.timers.mark = self._session.timers.mark, torch.profiler.record_function
        self._profiler.start()
