"""Which tests run on how many ranks, and which may be skipped.

A test that is skipped for a reason that skips.toml does not have, or for one that it has more often than it says, fails
the run. Tests for other numbers of ranks are deselected, and counted; so are those marked nightly, unless ``-m`` or the
name of their file asks for them. With ``--once`` every test that knows ranks runs on one of the numbers 1 to 4, which
its file decides: sessions on all four numbers run each of them once, with at most CASES_ONCE cases of a test, which are
spread over all its cases. With ``--short``, of the tests that start ranks or need Slurm only those run that core.toml
lists, none that is marked long, and at most CASES_SHORT cases of a test that knows ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Marks of tests that several ranks leave out.
ONE_RANK = ("launcher", "serial", "slurm")
ONCE, SHORT, LONG, CASE, NIGHTLY = "once", "short", "long", "case", "nightly"
CASES_SHORT, CASES_ONCE = 2, 4
JOBS = ("launcher", "slurm")
HOMES = (1, 2, 3, 1, 2, 4)  # numbers of ranks, in turns: on two cores, few ranks are done sooner
SALT = "273"  # of several hundred, this one gives the four numbers of ranks the most even shares of the time
WHOLE_FILE = re.compile(rf"^pytestmark = .*mark\.({'|'.join(ONE_RANK)})\b", re.MULTILINE)
ROOT = Path(__file__).resolve().parent
CORE = ROOT / "core.toml"
REASONS = {ONCE: "their turn is on another number", SHORT: "not in core.toml", CASE: "other cases of the same test run"}
GOOD = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def long_but(cases: Iterable[Any], is_short: Callable[[Any], bool]) -> list[Any]:
    """Mark all cases of a test long but the ones for which ``is_short`` is true, which stand for them in the short
    suite."""
    return [case if is_short(case) else pytest.param(case, marks=pytest.mark.long) for case in cases]


def further_cases(items: Iterable[pytest.Item], most: int) -> list[pytest.Item]:
    """Cases of tests that know ranks beyond ``most`` of a test; those that stay are spread over all its cases."""
    tests = defaultdict(list)
    for item in items:
        if not any(map(item.get_closest_marker, ONE_RANK)):
            tests[name_of(item).partition("[")[0]].append(item)
    return [
        case
        for cases in tests.values()
        for place, case in enumerate(cases)
        if place and place * most // len(cases) == (place - 1) * most // len(cases)
    ]


@dataclass(frozen=True)
class Allowed:
    """A reason to skip, which a regular expression matches as a whole, and how many tests may have it."""

    reason: str
    most: int
    unless_root: bool = False
    unless_set_up: bool = False


def read_allowed(path: Path) -> list[Allowed]:
    """The reasons that a file allows. Those that root can remove by apt-get are not allowed to root, those of a plain
    installation not in an environment that tests/setup.sh has made."""
    with open(path, "rb") as file:
        allowed = [Allowed(**entry) for entry in tomllib.load(file)["allowed"]]
    root = os.geteuid() == 0 and shutil.which("apt-get") is not None
    stamp = Path(sys.prefix) / "hpcgnn-setup"
    set_up = stamp.exists() and " test " in stamp.read_text()
    return [entry for entry in allowed if not ((root and entry.unless_root) or (set_up and entry.unless_set_up))]


def reason_of(report) -> str | None:
    """Why a test, or a file, was skipped or expected to fail; None where it was neither."""
    if hasattr(report, "wasxfail"):
        return f"xfail: {report.wasxfail}"
    if not report.skipped:
        return None
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


class SkipRules:
    """Pytest plugin: fails the run when more is skipped than is allowed, and lists what is skipped."""

    def __init__(self, allowed: list[Allowed]):
        self.allowed = allowed
        self.skipped: dict[str, str] = {}  # reason by test or file

    def pytest_runtest_logreport(self, report):
        self.note(report)

    def pytest_collectreport(self, report):
        self.note(report)

    def note(self, report):
        reason = reason_of(report)
        if reason is not None:
            self.skipped[report.nodeid] = reason

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        started_by_xdist = hasattr(session.config, "workeroutput")  # whose own process sees the reports of all workers
        if not started_by_xdist and self.judge()[1] and session.exitstatus in GOOD:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def judge(self) -> tuple[list[str], list[str]]:
        """Lines of what is skipped and allowed, and of what is not allowed."""
        tests = defaultdict(list)
        for test, reason in self.skipped.items():
            tests[next((entry for entry in self.allowed if re.fullmatch(entry.reason, reason)), reason)].append(test)
        good, bad = [], []
        for key, names in tests.items():
            if not isinstance(key, Allowed):
                bad.append(f"{len(names)} skipped, not allowed: {key} ({names[0]})")
            elif len(names) > key.most:
                bad.append(f"{len(names)} skipped, at most {key.most} allowed: {key.reason}")
            else:
                good.append(f"{len(names)} skipped, at most {key.most} allowed: {key.reason}")
        return good, bad

    def pytest_terminal_summary(self, terminalreporter):
        good, bad = self.judge()
        if good or bad:
            terminalreporter.section("skipped, by reason")
        for line in good:
            terminalreporter.write_line(line)
        for line in bad:
            terminalreporter.write_line(line, red=True)
        if bad:
            terminalreporter.write_line("FAILED: tests/skips.toml does not allow this", red=True)


class RankSelection:
    """Pytest plugin: deselects tests that are for other numbers of ranks, and those that take long and were not asked
    for, and says how many.

    num_ranks: of this session; once: each test that knows ranks runs on one number of ranks only; core: beginnings of
    the names of the only tests to run of those in JOBS, None: all; asked_for: says of a nightly test whether it was
    asked for.
    """

    def __init__(
        self, num_ranks: int, once: bool, core: tuple[str, ...] | None, asked_for: Callable[[pytest.Item], bool]
    ):
        self.num_ranks, self.once, self.core, self.asked_for = num_ranks, once, core, asked_for
        self.unmet, self.files = set(core or ()), set[str]()  # of the core: not yet collected; and the collected files
        self.deselected: Counter[str] = Counter()

    def why_not(self, item) -> str | None:
        """The mark that keeps a test from these ranks."""
        if self.num_ranks == 1 and item.get_closest_marker("several_ranks"):
            return "several_ranks"
        if self.num_ranks > 1 and (name := next(filter(item.get_closest_marker, ONE_RANK), None)):
            return name
        if any(self.num_ranks not in mark.args for mark in item.iter_markers("ranks")):
            return "ranks"
        if self.once and home_of(item) != self.num_ranks:
            return ONCE
        if self.core is not None and item.get_closest_marker(LONG):
            return LONG
        if self.core is not None and any(map(item.get_closest_marker, JOBS)):
            if not name_of(item).startswith(self.core):
                return SHORT
        return NIGHTLY if item.get_closest_marker(NIGHTLY) and not self.asked_for(item) else None

    def pytest_ignore_collect(self, collection_path, config):
        """Leave out files that hold nothing for this session: to collect all of them takes a rank 20 seconds."""
        if collection_path.name.startswith("test_") and collection_path.suffix == ".py" and not self.may_hold(
            collection_path, config.getoption("-m") or ""
        ):  # fmt: skip
            return True
        return None

    def may_hold(self, path: Path, marks: str) -> bool:
        """Whether a file may hold tests for this session, by the words in it."""
        text = path.read_text()
        if self.num_ranks > 1 and WHOLE_FILE.search(text):
            return False
        if any(marks.startswith(name) and name not in text for name in JOBS):
            return False
        turn = not self.once or self.num_ranks == 1 or turns_of(path)[0] == self.num_ranks
        return turn or "several_ranks" in text or "mark.ranks" in text

    def pytest_itemcollected(self, item):
        self.unmet -= {name for name in self.unmet if name_of(item).startswith(name)}
        self.files.add(name_of(item).partition("::")[0])
        if any(item.get_closest_marker(name) for name in ("several_ranks", "ranks")):
            for name in filter(item.get_closest_marker, ONE_RANK):
                raise pytest.UsageError(f"{item.nodeid} is marked {name} too: no stage runs it on several ranks")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        reasons = {item: self.why_not(item) for item in items}
        if most := CASES_SHORT if self.core is not None else CASES_ONCE if self.once else 0:
            reasons |= dict.fromkeys(further_cases((item for item in items if not reasons[item]), most), CASE)
        whole = not any("::" in argument for argument in config.args)  # files, not single tests of them
        if gone := [name for name in self.unmet if whole and name.partition("::")[0] in self.files]:
            raise pytest.UsageError(f"{CORE.name} lists tests that are not there: {', '.join(sorted(gone))}")
        self.deselected.update(filter(None, reasons.values()))
        config.hook.pytest_deselected(items=[item for item in items if reasons[item]])
        items[:] = [item for item in items if not reasons[item]]

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["deselected"] = dict(self.deselected)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Only the workers of pytest-xdist collect tests, each all of them."""
        self.deselected |= Counter(getattr(node, "workeroutput", {}).get("deselected", {}))

    def pytest_terminal_summary(self, terminalreporter):
        where = "one rank" if self.num_ranks == 1 else f"{self.num_ranks} ranks"
        for name, count in self.deselected.items():
            reason = REASONS.get(name, f"marked {name}")
            line = f"{count} tests do not run on {where}: {reason}"
            if name == NIGHTLY:
                line = f"{count} tests take long and do not run unasked: marked nightly, -m nightly runs them"
            terminalreporter.write_line(line)


def asks_for_nightly(config) -> Callable[[pytest.Item], bool]:
    """Return what says whether a nightly test was asked for: by ``-m``, or by the name of its file."""
    by_mark = NIGHTLY in (config.getoption("-m") or "")
    named = {(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args}
    return lambda item: by_mark or item.path.resolve() in named


def name_of(item) -> str:
    """The name of a test, beginning with its file's path below this folder."""
    return item.nodeid.removeprefix(f"{ROOT.name}/")


def read_core(path: Path) -> tuple[str, ...]:
    """Beginnings of the names of the tests that a file lists, promise by promise."""
    with open(path, "rb") as file:
        return tuple(name for promise in tomllib.load(file)["promise"] for name in promise["tests"])


def home_of(item) -> int:
    """The number of ranks, 1 to 4, that a test runs on where it runs once, by the name of its file and by its marks; 0:
    none of these."""
    if any(map(item.get_closest_marker, ONE_RANK)):
        return 1
    numbers = set(HOMES) - ({1} if item.get_closest_marker("several_ranks") else set())
    for mark in item.iter_markers("ranks"):
        numbers &= set(mark.args)
    return next((count for count in turns_of(item.path) if count in numbers), 0)


def turns_of(path: Path) -> tuple[int, ...]:
    """Numbers of ranks in the order in which a file's tests take one that they are for."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    first = zlib.crc32((SALT + name).encode()) % len(HOMES)
    return HOMES[first:] + HOMES[:first]


def add_options(parser) -> None:
    """Add the options that change which tests run, and what may be skipped."""
    said = "a regular expression of a reason to skip tests, in addition to those of skips.toml"
    parser.addoption("--allow-skip", action="append", default=[], metavar="REASON", help=said)
    parser.addoption("--no-skips", action="store_true", help="any skipped test fails the run")
    said = "run each test that knows ranks on one number of ranks only, 1 to 4, as its file's name decides"
    parser.addoption("--once", action="store_true", help=said)
    said = "the short suite: few examples of a property, and of tests that start ranks or need Slurm those of core.toml"
    parser.addoption("--short", action="store_true", help=said)


def register(config, num_ranks: int) -> None:
    """Register both plugins."""
    allowed = [] if config.getoption("--no-skips") else read_allowed(Path(__file__).with_name("skips.toml"))
    allowed += [Allowed(reason, sys.maxsize) for reason in config.getoption("--allow-skip")]
    config.pluginmanager.register(SkipRules(allowed), "skip-rules")
    core = read_core(CORE) if config.getoption("--short") else None
    ranks = RankSelection(num_ranks, config.getoption("--once"), core, asks_for_nightly(config))
    config.pluginmanager.register(ranks, "rank-selection")
