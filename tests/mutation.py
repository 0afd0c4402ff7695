"""Mutation testing of comm, loop, task and graph: do the tests notice a small change of the code?

    pip install 'cosmic-ray>=8.7' 'pytest-cov>=7'       # beside what tests/setup.sh brings
    python tests/mutation.py cover                      # which tests of the short suite reach which line
    python tests/mutation.py sample --number 300        # draw mutants by --seed
    python tests/mutation.py run                        # change the code by each, and run the tests that reach it
    python tests/mutation.py report                     # how many were noticed, and the others

With ``--short``, ``run`` has them judged by what the short suite runs of these tests, on 1, 2, 3 and 4 ranks; ``run
--survivors`` after it judges anew, by all of them, those that were not noticed. ``report --tests`` has what noticed.

It changes files of the checkout it is called in and puts them back: use a clone of your own, with a .venv of its own
(`bash tests/setup.sh`). Results are kept in `build/mutation`; `run` goes on where it was ended. Mutants are made by
Cosmic Ray. A mutant is killed where a test fails or hangs, first of those on one rank, quick ones first, then of those
on two. docs/hygiene.md has the outcome.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import random
import re
import sqlite3
import subprocess
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/mutation"
SESSION, CONFIG, REACHED = WORK / "session.sqlite", WORK / "cosmic-ray.toml", WORK / "reached.json"
FOLDERS = ("hpcgnn/comm", "hpcgnn/loop", "hpcgnn/task", "hpcgnn/graph")
SEED = 20261124
SPENT = 30.0  # seconds on tests that reach a line, quick ones first
UNKNOWN = 3.0  # seconds, of tests that one rank leaves to others
SECONDS = 160  # on one number of ranks: a mutant that takes longer hangs
SHORT = ("--short", "--once")
MARKERS = "not slurm and not launcher and not nightly"


def command(ranks: int, *options: str) -> list[str]:
    """Of pytest on so many ranks."""
    marks = MARKERS if ranks == 1 else f"{MARKERS} and not serial"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *options]
    if ranks == 1:
        return words
    mpirun = ["mpirun", "-np", str(ranks), "--oversubscribe", "--allow-run-as-root"]
    return ["bash", "jobs/clean_start.sh", *mpirun, *words, "--with-mpi"]


def cover() -> None:
    """Write which tests reach which line of FOLDERS to REACHED."""
    WORK.mkdir(parents=True, exist_ok=True)
    log = WORK / "tests.xml"
    for ranks in (1, 2, 3, 4):
        data = WORK / f"coverage-{ranks}"
        settings = WORK / f"coverage-{ranks}.ini"
        places = "\n    ".join(("", *FOLDERS))  # all others would take three times as long
        settings.write_text(f"[run]\nsource ={places}\nrelative_files = true\ndata_file = {data}-${{PMIX_RANK-0}}\n")
        options = ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
        options += ["-n", "auto", f"--junitxml={log}"] if ranks == 1 else []
        subprocess.run([*command(ranks, *SHORT), *options], cwd=ROOT)
    REACHED.write_text(json.dumps(reached_lines(WORK.glob("coverage-?-*"), durations(log))))


def durations(log: Path) -> dict[str, float]:
    """Sum the seconds of every test that one rank has run, over its parameters."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(log).iter("testcase"):
        if case.find("skipped") is None:
            file = case.get("classname", "").replace(".", "/") + ".py"
            seconds[f"{file}::{case.get('name', '').partition('[')[0]}"] += float(case.get("time", 0))
    return dict(seconds)


def reached_lines(data: Iterable[Path], seconds: dict[str, float]) -> dict[str, dict[int, list[str]]]:
    """Names of tests, quick ones that run few lines first, by file and line; line 0: of the whole file."""
    from coverage import CoverageData

    tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    sizes: Counter[str] = Counter()
    for path in data:
        measured = CoverageData(str(path))
        measured.read()
        for file in measured.measured_files():
            for line, contexts in measured.contexts_by_lineno(file).items():
                names = {context.partition("|")[0].partition("[")[0] for context in contexts if context}
                sizes.update(names)
                if file.startswith(FOLDERS):
                    tests[file][line] |= names
                    tests[file][0] |= names

    def chosen(names: set[str]) -> list[str]:
        in_order = sorted(names, key=lambda name: (math.ceil(seconds.get(name, UNKNOWN)), sizes[name], name))
        total = list(accumulate(seconds.get(name, UNKNOWN) for name in in_order))
        return in_order[: max(1, bisect_right(total, SPENT))]

    return {file: {line: chosen(names) for line, names in lines.items()} for file, lines in tests.items()}


def sample(number: int, seed: int) -> None:
    """Make a session of so many mutants of FOLDERS, drawn by ``seed``."""
    WORK.mkdir(parents=True, exist_ok=True)
    configure(short=False)
    cosmic_ray("init", "--force", CONFIG, SESSION)
    with sqlite3.connect(SESSION) as session:
        # Names of jobs are drawn anew by each session.
        query = (
            "SELECT job_id, module_path, start_pos_row, start_pos_col FROM mutation_specs "
            "ORDER BY module_path, operator_name, operator_args, occurrence"
        )
        everything = session.execute(query).fetchall()
        hints = {file: annotations(ROOT / file) for file in {file for _, file, _, _ in everything}}
        jobs = [job for job, file, *place in everything if not any(a <= tuple(place) < b for a, b in hints[file])]
        drawn = set(random.Random(seed).sample(jobs, number))
        others = [(job,) for job, *_ in everything if job not in drawn]
        for table in ("mutation_specs", "work_items"):
            session.executemany(f"DELETE FROM {table} WHERE job_id = ?", others)
    print(f"{number} of {len(jobs)} mutants")


def configure(short: bool) -> None:
    """Write how Cosmic Ray has a mutant judged."""
    judge = f"{sys.executable} {Path(__file__).resolve()} judge" + short * " --short"
    CONFIG.write_text(
        f"[cosmic-ray]\nmodule-path = {json.dumps(FOLDERS)}\ntimeout = {4 * SECONDS + 60}.0\n"
        f'excluded-modules = []\ntest-command = "{judge}"\n[cosmic-ray.distributor]\nname = "local"\n'
    )


def run(short: bool, survivors: bool) -> None:
    """Judge the mutants that were not judged yet, or those that were not noticed."""
    configure(short)
    if survivors:
        with sqlite3.connect(SESSION) as session:
            session.execute("DELETE FROM work_results WHERE test_outcome = 'SURVIVED'")
    cosmic_ray("exec", CONFIG, SESSION)


def annotations(file: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Find where types of arguments and results begin and end, as (row, column): nothing evaluates them."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    hints = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")
             if isinstance(node, (ast.arg, ast.FunctionDef))]  # fmt: skip
    return [((hint.lineno, hint.col_offset), (hint.end_lineno, hint.end_col_offset)) for hint in hints if hint]


def cosmic_ray(*words: object) -> None:
    subprocess.run([Path(sys.executable).with_name("cosmic-ray"), *map(str, words)], cwd=ROOT, check=True)


def judge(short: bool) -> int:
    """Run the tests that reach the line that is changed now; exit code 1 where one notices."""
    lines = ["git", "diff", "--unified=0", "--", *FOLDERS]
    diff = subprocess.run(lines, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    file, line = re.search(r"^--- a/(.*)$", diff, re.MULTILINE)[1], re.search(r"^@@ -(\d+)", diff, re.MULTILINE)[1]
    reached = json.loads(REACHED.read_text()).get(file, {})
    tests = reached.get(line) or reached.get("0", [])
    options = ["-x", "--timeout=100", *(SHORT if short else ())]
    return int(bool(tests) and any(notices(ranks, options, tests) for ranks in ((1, 2, 3, 4) if short else (1, 2))))


def notices(ranks: int, options: list[str], tests: list[str]) -> bool:
    """Whether one of some tests fails or hangs on so many ranks."""
    words = command(ranks, *options, *tests)
    try:
        done = subprocess.run(words, cwd=ROOT, timeout=SECONDS, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        print(f"hangs on {ranks} ranks")
        return True
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    print(f"{ranks} ranks: exit code {done.returncode}", *sorted(set(failed)))
    if done.returncode == pytest.ExitCode.USAGE_ERROR:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def report(every: bool) -> None:
    """Print how many mutants were killed, and the others with their change, or all with the tests that noticed."""
    outcomes: Counter[str] = Counter()
    with sqlite3.connect(SESSION) as session:
        for place, outcome, diff, printed in results(session):
            outcomes[outcome] += 1
            if outcome != "killed" or every:
                print(f"{place}: {outcome}\n{diff}\n{printed}")
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))


def results(session: sqlite3.Connection) -> Iterator[tuple[str, str, str, str]]:
    """Place, outcome and changed lines of every mutant, and what its judge printed."""
    query = (
        "SELECT module_path, start_pos_row, operator_name, test_outcome, worker_outcome, diff, output "
        "FROM mutation_specs LEFT JOIN work_results USING (job_id) ORDER BY module_path, start_pos_row, operator_name"
    )
    for file, row, operator, outcome, worker, diff, output in session.execute(query):
        changed = [line for line in (diff or "").splitlines() if re.match(r"[-+](?!--|\+\+)", line)]
        name = operator.rpartition("/")[2]
        yield f"{file}:{row} {name}", (outcome or worker or "waiting").lower(), "\n".join(changed), output or ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("cover", "sample", "run", "judge", "report"))
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--short", action="store_true", help="judge: by what the short suite runs of the tests")
    parser.add_argument("--survivors", action="store_true", help="run: those that were not noticed, once more")
    parser.add_argument("--tests", action="store_true", help="report: all, with the tests that noticed them")
    options = parser.parse_args()
    if options.step == "judge":
        return judge(options.short)
    if options.step == "run":
        run(options.short, options.survivors)
    elif options.step == "sample":
        sample(options.number, options.seed)
    elif options.step == "report":
        report(options.tests)
    else:
        cover()
    return 0


if __name__ == "__main__":
    sys.exit(main())
