"""Fuzz the readers: `python tests/fuzz.py --minutes 60`.

Valid inputs are changed at random (`fuzz_changes`) and read (`fuzz_readers`), each in a process of its own with a limit
on memory, time and the size of files. A finding is a process that dies by a signal, hangs, asks for more memory than
the limit, or raises what no command takes for a refusal. Cases are numbered: `--reader NAME --case NUMBER` does one of
them again. Exit code 1 where there are findings.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # a pool of threads does not outlive a fork
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others reserve more addresses than the limit has

import torch

sys.path.extend([str(Path(__file__).resolve().parent / folder) for folder in ("helpers", "data_tools/source")])

from fuzz_changes import change
from fuzz_readers import READERS, Reader

from hpcgnn.comm.world import DistributedError

SECONDS = 60
MEMORY_BYTES = 2 << 30
FILE_BYTES = 256 << 20
TAKEN, REFUSED, RAISED, ALLOCATED, BROKEN = range(5)
OUTCOMES = ("taken", "refused", "raised what is no refusal", "asked for too much memory", "the fuzzer itself failed")
WITHOUT_HASH = "graph "  # readers of files that nothing tells to be damaged before HDF5, which may loop, opens them
IN_HDF5 = re.compile(r'most recent call first\):\s+File "[^"]*/h5py/')
TOO_MUCH = re.compile(r"[Uu]nable to allocate|can't allocate|bad_alloc|MemoryError|[Oo]ut of memory|malloc of size")


@dataclass
class Tally:
    """What came of the cases: their number by outcome, findings by where they happened, the most memory of one."""

    outcomes: Counter = field(default_factory=Counter)
    findings: dict[str, list[str]] = field(default_factory=dict)
    peak: int = 0
    slowest: float = 0.0

    def merge(self, other: Tally) -> None:
        """Add another's cases."""
        self.outcomes += other.outcomes
        for where, cases in other.findings.items():
            self.findings.setdefault(where, []).extend(cases)
        self.peak, self.slowest = max(self.peak, other.peak), max(self.slowest, other.slowest)

    def add(self, name: str, number: int, code: int, log: str) -> None:
        """Note a case; -SIGNAL and SECONDS + 1000 are codes too."""
        outcome = OUTCOMES[code] if 0 <= code < len(OUTCOMES) else "hung" if code > 0 else signal.Signals(-code).name
        if outcome == "hung" and name.startswith(WITHOUT_HASH) and IN_HDF5.search(log):
            outcome = "hung in HDF5"
        self.outcomes[outcome] += 1
        if code in (TAKEN, REFUSED) or outcome == "hung in HDF5":
            return
        places = re.findall(r'File "[^"]*/((?:hpcgnn|data_tools|tests)/[^"]+)", line (\d+)', log)
        last = log.strip().splitlines()[-1][:300] if log.strip() else ""
        where = f"{places[-1][0]}:{places[-1][1]}" if places else last
        known = self.findings.setdefault(f"{name}: {outcome}: {where}", [])
        if not known:
            print(f"finding: {name} --case {number}: {outcome} at {where}\n    {last}", flush=True)
        known.append(str(number))


def case(reader: Reader, source: Path, folder: Path, seed: str) -> int:
    """Change a copy of an input (no ``seed``: leave it as it is) and read it, in this process; returns how it
    ended."""
    shutil.copytree(source, folder)
    try:
        if seed:
            rng = random.Random(seed)
            change(rng.choice(sorted(folder.glob(rng.choice(reader.changed)))), rng)
    except BaseException:
        traceback.print_exc()
        return BROKEN
    limit_resources()
    try:
        reader.read(folder)
    except MemoryError:
        traceback.print_exc()
        return ALLOCATED
    except (ValueError, OSError, DistributedError) as error:
        traceback.print_exc()
        return REFUSED if not TOO_MUCH.search(str(error)) else ALLOCATED
    except SystemExit as error:
        return REFUSED if error.code else TAKEN
    except BaseException:
        text = traceback.format_exc()
        print(text, file=sys.stderr)
        return ALLOCATED if TOO_MUCH.search(text) else RAISED
    return TAKEN


def limit_resources() -> None:
    """Limit this process to what it has and MEMORY_BYTES more, and the files that it writes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def isolated(reader: Reader, source: Path, folder: Path, seed: str) -> tuple[int, str, int, float]:
    """A case in a process of its own: how it ended, what it printed, its peak memory in bytes, seconds."""
    start, log = time.monotonic(), folder.with_suffix(".log")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable(all_threads=False)
        faulthandler.dump_traceback_later(SECONDS - 5)
        vars(sys.modules["__main__"]).pop("__file__", None)  # a reader's process of its own would import all of this
        code = BROKEN
        try:
            code = case(reader, source, folder, seed)
            sys.stdout.flush()
        finally:
            os._exit(code)
    pid, status, usage = 0, 0, None
    while not pid and time.monotonic() < start + SECONDS:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        time.sleep(0.002)
    hung = not pid
    if hung:
        os.killpg(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    text = log.read_text(errors="replace") if log.exists() else ""
    code = SECONDS + 1000 if hung else os.waitstatus_to_exitcode(status)
    if code in (TAKEN, REFUSED) and TOO_MUCH.search(text):
        code = ALLOCATED  # a command that prints its refusals
    elif code == TAKEN and "error: " in text:
        code = REFUSED
    return code, text, usage.ru_maxrss << 10, time.monotonic() - start


def fuzz(sources: dict[str, Path], seed: int, seconds: float, numbers, keep: Path | None = None) -> Tally:
    """Cases of every reader in turn until the time is over; ``sources``: their valid inputs. Changed inputs of findings
    go to ``keep``."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        stop = time.monotonic() + seconds
        for number in numbers:
            for name, source in sources.items():
                if time.monotonic() > stop:
                    return tally
                folder = Path(tempfile.mkdtemp(dir=scratch)) / "case"
                code, log, peak, spent = isolated(READERS[name], source, folder, f"{seed}/{name}/{number}")
                tally.add(name, number, code, log)
                tally.peak, tally.slowest = max(tally.peak, peak), max(tally.slowest, spent)
                if keep and code not in (TAKEN, REFUSED):
                    target = keep / f"{name} {number}".replace(" ", "-")
                    shutil.copytree(folder.parent, target, dirs_exist_ok=True)
                shutil.rmtree(folder.parent, ignore_errors=True)
    return tally


def fuzz_at_once(sources: dict[str, Path], options: argparse.Namespace) -> Tally:
    """`fuzz` in ``--jobs`` processes, each with cases of its own."""
    tally, fork = Tally(), multiprocessing.get_context("fork")
    with ProcessPoolExecutor(options.jobs, mp_context=fork) as pool:
        shares = [
            pool.submit(
                fuzz, sources, options.seed, 60 * options.minutes, range(job, 1 << 62, options.jobs), options.keep
            )
            for job in range(options.jobs)
        ]
        for share in shares:
            tally.merge(share.result())
    return tally


def make_source(name: str, scratch: Path) -> Path:
    """The valid input of a reader; readers with the same maker share it."""
    make = READERS[name].make
    folder = scratch / f"source-{id(make)}"
    if not folder.exists():
        folder.mkdir()
        make(folder)
    return folder


def main(argv: list[str] | None = None) -> int:
    """Fuzz as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python tests/fuzz.py", description="Fuzz the readers.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", choices=list(READERS), help="only this one (may be repeated)")
    parser.add_argument("--case", type=int, help="only the case of this number")
    parser.add_argument("--jobs", type=int, default=1, help="as many cases at once")
    parser.add_argument("--keep", type=Path, help="folder for the inputs and the output of findings")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fuzz-sources-") as scratch:
        sources = {name: make_source(name, Path(scratch)) for name in options.reader or READERS}
        if options.case is None:
            tally = fuzz_at_once(sources, options)
        else:
            tally = fuzz(sources, options.seed, 60 * options.minutes, [options.case], options.keep)
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in tally.outcomes.most_common())
    print(f"{tally.outcomes.total():,} cases of {len(options.reader or READERS)} readers, seed {options.seed}: {told}")
    print(f"most memory of a process {tally.peak / 2**20:,.0f} MiB, longest {tally.slowest:.1f} s")
    for where, cases in sorted(tally.findings.items()):
        print(f"finding: {where}: {len(cases)} cases, such as {', '.join(cases[:3])}")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
