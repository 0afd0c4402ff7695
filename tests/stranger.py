"""Does what pages tell a newcomer to do: every command, as it stands, in order, in one bash, in the clone of this file.

    python3 tests/stranger.py --first README.md                   the first block
    python3 tests/stranger.py --rest README.md docs/first_run.md  all others, but for the same commands
    python3 tests/stranger.py --count                             how many of all pages run unchanged, with a hint, not

What the pages show of the output has to come, in that order: words as they are; numbers within 5 %, but for seconds,
rates and memory, which are a machine's. Files that a page takes as given are the real ones where they lie in
../shared, else made up, and what the section shows is not compared then. Jobs of Slurm are waited for, where one runs;
where none does, they are left out. Exit code 1 at the first command that fails or line that does not come.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from docs_commands import NEEDS_SLURM, REPOSITORY, Command, Shell, Shown, commands, pages, parts

GIVEN = ("data/wikipedia.csv", "pairs.csv", "events.csv")
REAL = {"data/wikipedia.csv": "wikipedia/wikipedia.csv.gz"}  # below ../shared/data
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
OF_A_MACHINE = re.compile(rf"(?:{NUMBER.pattern}) (?:s|events/s|%|[KMG]iB)(?![\w/])")
TIMES = re.compile(r"^(?:seconds|MiB|epoch|compute|validation|plan|exchange)\b.*(?:min|\d %)")
JOB = re.compile(r"Submitted batch job (\d+)")


class Stranger:
    """Goes through parts of pages. ``ran`` and ``compared``: how many commands, and lines of output."""

    def __init__(self, everything: bool):
        """``everything``: also the checks that are run once."""
        self._everything = everything
        self._shell = Shell(REPOSITORY, echo=True)
        self._section, self._printed = "", list[str]()  # what the commands of a section printed
        self._made_up: set[str] = set()  # sections that read files which are not the real ones
        self.ran, self.compared = 0, 0

    def take(self, part: Command | Shown) -> None:
        if part.section != self._section:
            self._section, self._printed = part.section, []
        if isinstance(part, Shown):
            self._compare(part)
        elif part.reason and not (self._everything or (part.reason == NEEDS_SLURM and slurm_runs())):
            print(f"--- not run: {part}\n    {part.reason}", flush=True)
        else:
            self._run(part)

    def _run(self, command: Command) -> None:
        for name in GIVEN:
            if name in command.words and not give(name):
                self._made_up.add(command.section)
        print(f"--- {command}", flush=True)
        start, outputs = time.monotonic(), job_outputs()
        code, printed = self._shell.run(command.text, idle_minutes=30)
        if code:
            raise SystemExit(f"{command}\nended with exit code {code}")
        for job in JOB.findall(printed):
            wait_for_job(job, outputs)
        print(f"--- {time.monotonic() - start:.0f} s", flush=True)
        self._printed += printed.splitlines()
        self.ran += 1

    def _compare(self, shown: Shown) -> None:
        if shown.section in self._made_up:
            print(f"--- not compared, as files were made up: what {shown.section!r} shows", flush=True)
            return
        missing = first_missing(shown.lines, self._printed)
        if missing is not None:
            raise SystemExit(f"{shown.section}: this line did not come, or not in this order:\n    {missing}")
        self.compared += len(shown.lines)


def first_missing(shown: tuple[str, ...], printed: list[str]) -> str | None:
    """The first line that is not among what was printed, after those before it."""
    lines = iter(printed)
    for line in shown:
        if line.strip() != "..." and not any(agrees(line, other) for other in lines):
            return line
    return None


def agrees(shown: str, printed: str) -> bool:
    """Whether a line is the one that a page shows."""
    shown, printed = _plain(shown), _plain(printed)
    unlike = NUMBER if TIMES.match(shown) else OF_A_MACHINE
    shown, printed = unlike.sub("~", shown), unlike.sub("~", printed)
    if shown.endswith("..."):
        return printed.startswith(shown[:-3])
    if NUMBER.sub("~", shown) != NUMBER.sub("~", printed):
        return False
    return all(close(*pair) for pair in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True))


def close(one: str, other: str) -> bool:
    """Whether two numbers are within 5 %; counts, without a decimal point, must be the same."""
    if "." not in one + other:
        return one == other
    first, second = (float(number.replace(",", "")) for number in (one, other))
    return abs(first - second) <= 0.05 * max(abs(first), abs(second))


def _plain(line: str) -> str:
    """Without the time of day; which epoch is the best depends on the last bits."""
    line = re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", " ".join(line.split()))
    return re.sub(r"^best epoch \d+", "best epoch", line)


def give(name: str) -> bool:
    """Make a file that a page takes as given; whether it is a real one, or its page cares for no real one."""
    path, events = REPOSITORY / name, REPOSITORY / "data/wikipedia.csv"
    real = REPOSITORY.parent / "shared" / "data" / REAL.get(name, "")
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        if name == "pairs.csv":
            rows = [line.split(",")[:2] for line in events.read_text().splitlines()[1:6]]
            path.write_text("".join(f"{src},{dst}\n" for src, dst in [("src", "dst"), *rows]))
        elif real.is_file():
            with gzip.open(real) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
        else:
            sys.path.append(str(REPOSITORY / "tests" / "helpers"))
            from docs_sources import SOURCES  # needs what has been installed by then

            SOURCES[name](path)
    return name not in REAL or real.is_file()


def slurm_runs() -> bool:
    return shutil.which("sinfo") is not None and subprocess.run(["sinfo"], capture_output=True).returncode == 0


def job_outputs() -> set[Path]:
    """What jobs of Slurm printed here; those of an array have numbers of their own."""
    return set(REPOSITORY.glob("*.out"))


def wait_for_job(job: str, before: set[Path]) -> None:
    """Until a job and all of its array have ended well; what they printed is printed."""
    while _squeue(job):
        time.sleep(1)
    texts = {path.name: path.read_text() for path in sorted(job_outputs() - before)}
    print("\n".join(texts.values()), flush=True)
    if not texts or not all("finished with exit code 0" in text for text in texts.values()):
        raise SystemExit(f"job {job} did not end well: {', '.join(texts)}")


def _squeue(job: str) -> str:
    return subprocess.run(["squeue", "-h", "-j", job], capture_output=True, text=True).stdout.strip()


def count() -> None:
    """Print how many commands of all pages run unchanged, with a hint, and not, and why."""
    found = [command for page in pages() for command in commands(page)]
    reasons = Counter(command.reason for command in found)
    run = [command for command in found if not command.reason]
    hinted = sum(command.small != command.text for command in run)
    print(
        f"{len(found)} commands: {len(run) - hinted} unchanged, {hinted} with a hint, {len(found) - len(run)} not run"
    )
    for reason, number in reasons.most_common():
        if reason:
            print(f"{number:5}  {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--first", action="store_true", help="the first block of the first page")
    which.add_argument("--rest", action="store_true", help="all but the first block of the first page")
    which.add_argument("--count", action="store_true", help="run nothing; count the commands of all pages")
    parser.add_argument("pages", nargs="*", type=Path)
    options = parser.parse_args()
    if options.count:
        return count()
    stranger = Stranger(options.first)
    for part in chosen(options.pages, options.first):
        stranger.take(part)
    print(f"{stranger.ran} commands ran as they stand; {stranger.compared} lines of output are as shown")


def chosen(files: list[Path], first: bool) -> list[Command | Shown]:
    """The first block of the first page with what is shown of its output, or all else, but for its commands."""
    found = [part for page in files for part in parts(page)]
    start = next(number for number, part in enumerate(found) if isinstance(part, Command) and not part.inline)
    stop = next(number for number, part in enumerate(found) if isinstance(part, Shown)) + 1
    block = found[start:stop]
    has_run = {part.words for part in block if isinstance(part, Command)}
    rest = [part for part in found[:start] + found[stop:] if isinstance(part, Shown) or part.words not in has_run]
    return block if first else rest


if __name__ == "__main__":
    sys.exit(main())
