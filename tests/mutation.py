"""Mutation testing of comm, loop, task and graph: do the tests notice a small change of the code?

    pip install 'cosmic-ray>=8.7' 'pytest-cov>=7'       # beside what tests/setup.sh brings
    python tests/mutation.py cover                      # which tests reach which line, on one rank and on two
    python tests/mutation.py sample --number 300        # draw mutants by --seed
    python tests/mutation.py run                        # change the code by each, and run the tests that reach it
    python tests/mutation.py report                     # how many were noticed, and the others

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

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/mutation"
SESSION, CONFIG, REACHED = WORK / "session.sqlite", WORK / "cosmic-ray.toml", WORK / "reached.json"
FOLDERS = ("hpcgnn/comm", "hpcgnn/loop", "hpcgnn/task", "hpcgnn/graph")
SEED = 20261124
SPENT = {1: 25.0, 2: 12.0}  # seconds on tests that reach a line, quick ones first, by number of ranks
UNKNOWN = 3.0  # seconds, of tests that one rank skips
SECONDS = {1: 160, 2: 160}  # a mutant that takes longer hangs
MARKERS = {
    1: "not slurm and not launcher and not nightly",
    2: "not slurm and not launcher and not nightly and not serial",
}


def command(ranks: int) -> list[str]:
    """Of pytest on so many ranks."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", MARKERS[ranks]]
    if ranks == 1:
        return pytest
    mpirun = ["mpirun", "-np", str(ranks), "--oversubscribe", "--allow-run-as-root"]
    return ["bash", "jobs/clean_start.sh", *mpirun, *pytest, "--with-mpi"]


def cover() -> None:
    """Write which tests reach which line of FOLDERS to REACHED."""
    WORK.mkdir(parents=True, exist_ok=True)
    reached, log = {}, WORK / "tests.xml"
    for ranks in (1, 2):
        data = WORK / f"coverage-{ranks}"
        settings = WORK / f"coverage-{ranks}.ini"
        settings.write_text(f"[run]\nsource = hpcgnn\nrelative_files = true\ndata_file = {data}-${{PMIX_RANK-0}}\n")
        options = ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
        options += ["-n", "auto", f"--junitxml={log}"] if ranks == 1 else []
        subprocess.run([*command(ranks), *options], cwd=ROOT)
        reached[ranks] = reached_lines(WORK.glob(f"coverage-{ranks}-*"), durations(log), SPENT[ranks])
    REACHED.write_text(json.dumps(reached))


def durations(log: Path) -> dict[str, float]:
    """Sum the seconds of every test that one rank has run, over its parameters."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(log).iter("testcase"):
        if case.find("skipped") is None:
            file = case.get("classname", "").replace(".", "/") + ".py"
            seconds[f"{file}::{case.get('name', '').partition('[')[0]}"] += float(case.get("time", 0))
    return dict(seconds)


def reached_lines(data: Iterable[Path], seconds: dict[str, float], spent: float) -> dict[str, dict[int, list[str]]]:
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
        return in_order[: max(1, bisect_right(total, spent))]

    return {file: {line: chosen(names) for line, names in lines.items()} for file, lines in tests.items()}


def sample(number: int, seed: int) -> None:
    """Make a session of so many mutants of FOLDERS, drawn by ``seed``."""
    WORK.mkdir(parents=True, exist_ok=True)
    judge = f"{sys.executable} {Path(__file__).resolve()} judge"
    CONFIG.write_text(
        f"[cosmic-ray]\nmodule-path = {json.dumps(FOLDERS)}\ntimeout = {sum(SECONDS.values()) + 60}.0\n"
        f'excluded-modules = []\ntest-command = "{judge}"\n[cosmic-ray.distributor]\nname = "local"\n'
    )
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


def annotations(file: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Find where types of arguments and results begin and end, as (row, column): nothing evaluates them."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    hints = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")
             if isinstance(node, (ast.arg, ast.FunctionDef))]  # fmt: skip
    return [((hint.lineno, hint.col_offset), (hint.end_lineno, hint.end_col_offset)) for hint in hints if hint]


def cosmic_ray(*words: object) -> None:
    subprocess.run([Path(sys.executable).with_name("cosmic-ray"), *map(str, words)], cwd=ROOT, check=True)


def judge() -> int:
    """Run the tests that reach the line that is changed now; exit code 1 where one notices."""
    lines = ["git", "diff", "--unified=0", "--", *FOLDERS]
    diff = subprocess.run(lines, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    file, line = re.search(r"^--- a/(.*)$", diff, re.MULTILINE)[1], re.search(r"^@@ -(\d+)", diff, re.MULTILINE)[1]
    reached = json.loads(REACHED.read_text())
    for ranks, limit in SECONDS.items():
        of_file = reached[str(ranks)].get(file, {})
        tests = of_file.get(line) or of_file.get("0", [])
        if not tests:
            continue
        try:
            done = subprocess.run([*command(ranks), "-x", "--timeout=100", *tests], cwd=ROOT, timeout=limit)
        except subprocess.TimeoutExpired:
            print(f"hangs on {ranks} ranks")
            return 1
        if done.returncode not in (0, 5):  # 5: no test is left on this number of ranks
            return 1
    return 0


def report() -> None:
    """Print how many mutants were killed, and the others with their change."""
    outcomes: Counter[str] = Counter()
    with sqlite3.connect(SESSION) as session:
        for place, outcome, diff in results(session):
            outcomes[outcome] += 1
            if outcome != "killed":
                print(f"{place}: {outcome}\n{diff}\n")
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))


def results(session: sqlite3.Connection) -> Iterator[tuple[str, str, str]]:
    """Place, outcome and changed lines of every mutant."""
    query = (
        "SELECT module_path, start_pos_row, operator_name, test_outcome, worker_outcome, diff FROM mutation_specs "
        "LEFT JOIN work_results USING (job_id) ORDER BY module_path, start_pos_row, operator_name"
    )
    for file, row, operator, outcome, worker, diff in session.execute(query):
        changed = [line for line in (diff or "").splitlines() if re.match(r"[-+](?!--|\+\+)", line)]
        name = operator.rpartition("/")[2]
        yield f"{file}:{row} {name}", (outcome or worker or "waiting").lower(), "\n".join(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("cover", "sample", "run", "judge", "report"))
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    if options.step == "judge":
        return judge()
    if options.step == "run":
        cosmic_ray("exec", CONFIG, SESSION)
    elif options.step == "sample":
        sample(options.number, options.seed)
    else:
        {"cover": cover, "report": report}[options.step]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
