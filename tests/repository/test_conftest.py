"""Agreement between ranks, and what is skipped, seen from outside: small pytest sessions under mpirun."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import selection
from conftest import clean_environment
from places import TESTS

pytestmark = [pytest.mark.launcher, pytest.mark.nightly]

HEADER = """
import os
import pytest
from mpi4py import MPI

RANK = MPI.COMM_WORLD.rank
"""


TWO_REASONS = """
[[allowed]]
reason = 'every[a-z]+'
most = 1

[[allowed]]
reason = 'xfail: '
most = 1
"""


@pytest.fixture
def session(mpirun, tmp_path):
    """A callable that runs the given tests on two ranks, with this folder's conftest.py and what may be skipped."""
    for name in ("conftest.py", "selection.py"):
        shutil.copy(TESTS / name, tmp_path)
    marks = ("launcher", "serial", "slurm", "gpu", "several_ranks", "ranks", "nightly")
    (tmp_path / "pytest.ini").write_text("\n    ".join(["[pytest]\nmarkers =", *marks]))

    def run(tests: str, *options: str, ranks: int = 2, allowed: str = "", where: str = "test_inner.py"):
        (tmp_path / "skips.toml").write_text(allowed or "allowed = []")
        (tmp_path / "test_inner.py").write_text(HEADER + tests)
        arguments = ["-m", "pytest", "-p", "no:cacheprovider", "-rA", "--color=no", *options, where]
        if ranks > 1:
            return mpirun(ranks, *arguments, cwd=tmp_path, check=False, timeout=900)
        command, environment = [sys.executable, *arguments], clean_environment()
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)

    return run


@pytest.mark.parametrize("options", [[], ["--with-mpi"]])
def test_agreeing_ranks_report_once(session, options):
    result = session(
        """
def test_sum(comm, mpi_tmp_path):
    assert comm.allreduce(1) == comm.size == 2
    assert len(set(comm.allgather(mpi_tmp_path))) == 1

def test_skipped():
    pytest.skip("everywhere")

@pytest.mark.xfail
def test_expected_to_fail():
    assert False

@pytest.mark.launcher
def test_launcher():
    assert False
""",
        *options,
        allowed=TWO_REASONS,
    )
    assert result.returncode == 0, result.stderr
    assert "1 passed, 1 skipped, 1 deselected, 1 xfailed" in result.stdout
    assert result.stdout.count("test session starts") == 1
    assert "1 tests do not run on 2 ranks: marked launcher" in result.stdout


def test_failure_on_one_rank_fails_all_and_names_the_rank(session):
    result = session(
        """
def test_before(comm):
    comm.Barrier()

def test_guilty():
    print("a clue")
    assert RANK == 0, "wrong here"

def test_after(comm):
    comm.Barrier()
    open(f"{RANK}.after", "w").close()
"""
    )
    assert result.returncode == 1
    assert "1 failed, 2 passed" in result.stdout
    assert result.stdout.count("FAILED test_inner.py::test_guilty") == 1
    assert "rank 0 passed, rank 1 failed" in result.stdout
    assert "wrong here" in result.stdout
    assert "a clue" in result.stdout


def test_failing_rank_exits_with_failure_everywhere(session, tmp_path):
    session(
        """
import atexit

@pytest.fixture(scope="session", autouse=True)
def codes(request):
    yield
    atexit.register(lambda: open(f"{RANK}.code", "w").write(str(int(request.session.exitstatus))))

def test_guilty():
    assert RANK == 0
"""
    )
    assert [(tmp_path / f"{rank}.code").read_text() for rank in range(2)] == ["1", "1"]


def test_fixture_that_fails_on_one_rank_keeps_the_test_from_running(session):
    result = session(
        """
@pytest.fixture
def broken():
    assert RANK == 1

def test_collective(comm, broken):
    comm.Barrier()
"""
    )
    assert result.returncode == 1
    assert "ERROR test_inner.py::test_collective" in result.stdout
    assert "rank 0 failed, rank 1 passed" in result.stdout


def test_skip_on_one_rank_is_a_failure(session):
    result = session(
        """
def test_half_skipped():
    if RANK == 1:
        pytest.skip("only here")
"""
    )
    assert result.returncode == 1
    assert "rank 0 passed, rank 1 skipped" in result.stdout
    assert "only here" in result.stdout


def test_failure_while_peers_are_blocked_aborts_soon(session):
    start = time.monotonic()
    result = session(
        """
def test_blocks(comm):
    assert RANK == 0, "wrong here"
    comm.Barrier()
"""
    )
    assert result.returncode != 0
    assert time.monotonic() - start < 300
    assert "rank 1 of 2: test_inner.py::test_blocks (call) failed here" in result.stderr
    assert "wrong here" in result.stderr


def test_dying_rank_ends_the_session(session):
    start = time.monotonic()
    result = session(
        """
def test_dies(comm):
    if RANK == 1:
        os._exit(3)
    comm.Barrier()
"""
    )
    assert result.returncode != 0
    assert time.monotonic() - start < 300


def test_ranks_with_different_tests_are_refused(session):
    result = session(
        """
@pytest.mark.parametrize("number", range(3 + RANK))
def test_number(number):
    pass
"""
    )
    assert result.returncode != 0
    assert "the ranks collected different tests" in result.stderr
    assert "rank 1: 4 tests" in result.stderr


def test_import_error_on_one_rank_is_shown(session):
    result = session(
        """
if RANK == 1:
    raise RuntimeError("cannot be imported here")

def test_anything():
    pass
"""
    )
    assert result.returncode != 0
    assert "cannot be imported here" in result.stderr


ONE_SKIPPED = """
def test_passes():
    pass

def test_skipped():
    pytest.skip("everywhere")
"""
MORE_SKIPPED = """
def test_skipped_too():
    pytest.skip("everywhere")
"""
EXPECTED = """
@pytest.mark.xfail(reason="a bug")
def test_expected_to_fail():
    assert False
"""
WHOLE_FILE = "pytest.importorskip('no_such_module', reason='needs it')"
WAYS = {"one process": (1, []), "workers": (1, ["-n2"]), "two ranks": (2, ["--with-mpi"])}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("tests", "code", "said"),
    [
        (ONE_SKIPPED, 0, "1 skipped, at most 1 allowed: every[a-z]+"),
        (ONE_SKIPPED + MORE_SKIPPED, 1, "2 skipped, at most 1 allowed: every[a-z]+"),
        (
            ONE_SKIPPED.replace("everywhere", "everywhere today"),
            1,
            "1 skipped, not allowed: everywhere today (test_inner",
        ),
        (ONE_SKIPPED + EXPECTED, 1, "1 skipped, not allowed: xfail: a bug (test_inner"),
        (WHOLE_FILE + ONE_SKIPPED, 1, "1 skipped, not allowed: needs it (test_inner"),
    ],
    ids=["allowed", "one too many", "another reason", "xfail", "whole file"],
)
def test_only_what_is_allowed_is_skipped(session, way, tests, code, said):
    ranks, options = WAYS[way]
    result = session(tests, *options, ranks=ranks, allowed=TWO_REASONS)
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stdout.count(said) == 1
    assert ("FAILED: tests/skips.toml" in result.stdout) == (code == 1)


def test_options_say_what_else_may_be_skipped(session):
    assert session(ONE_SKIPPED, "--allow-skip=every.*", ranks=1).returncode == 0
    assert session(ONE_SKIPPED, "--no-skips", ranks=1, allowed=TWO_REASONS).returncode == 1


def test_reasons_that_root_can_remove(tmp_path, monkeypatch):
    path = tmp_path / "skips.toml"
    path.write_text(TWO_REASONS + "unless_root = true")
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get")
    for user, expected in ((0, ["every[a-z]+"]), (1000, ["every[a-z]+", "xfail: "])):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        assert [entry.reason for entry in selection.read_allowed(path)] == expected


def test_reasons_that_setting_up_removes(tmp_path, monkeypatch):
    path = tmp_path / "skips.toml"
    path.write_text(TWO_REASONS + "unless_set_up = true")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    for stamp, expected in (
        (None, ["every[a-z]+", "xfail: "]),
        ("0a1b run", ["every[a-z]+", "xfail: "]),
        ("0a1b test and run", ["every[a-z]+"]),
    ):
        if stamp:
            (tmp_path / "hpcgnn-setup").write_text(stamp)
        assert [entry.reason for entry in selection.read_allowed(path)] == expected


MARKED = """
@pytest.mark.several_ranks
def test_several():
    assert MPI.COMM_WORLD.size > 1

@pytest.mark.parametrize("count", [pytest.param(count, marks=pytest.mark.ranks(count)) for count in (1, 2, 3)])
def test_one_number(count):
    assert MPI.COMM_WORLD.size == count
"""


@pytest.mark.parametrize(
    ("way", "passed", "several", "others"),
    [("one process", 1, 1, 2), ("workers", 1, 1, 2), ("two ranks", 2, 0, 2)],
)
def test_tests_run_on_the_numbers_of_ranks_they_are_for(session, way, passed, several, others):
    ranks, options = WAYS[way]
    result = session(MARKED, *options, ranks=ranks)
    assert result.returncode == 0, result.stdout + result.stderr
    where = "one rank" if ranks == 1 else "2 ranks"
    assert f"{passed} passed" in result.stdout
    assert f"{others} tests do not run on {where}: marked ranks" in result.stdout
    assert (f"{several} tests do not run on {where}: marked several_ranks" in result.stdout) == (several > 0)


FOR_ONE_RANK = """
def test_any(comm):
    assert comm.allreduce(1) == comm.size

ONE = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("serial", "launcher", "slurm")]

@pytest.mark.parametrize("mark", ONE)
def test_on_one_rank(mark):
    assert MPI.COMM_WORLD.size == 1 or MPI.COMM_WORLD.Abort(1)

@pytest.mark.nightly
def test_long():
    pass
"""


@pytest.mark.parametrize(
    ("where", "options", "passed", "nightly"),
    [(".", [], 1, 1), ("test_inner.py", [], 2, 0), (".", ["-mnightly"], 1, 0), (".", ["-mnot serial"], 1, 1)],
)
def test_the_plain_command_on_ranks_leaves_out_what_is_for_one_rank_and_what_takes_long(
    session, where, options, passed, nightly
):
    result = session(FOR_ONE_RANK, "--with-mpi", *options, where=where)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f" {passed} passed" in result.stdout
    left_out = "1 tests take long and do not run unasked: marked nightly, -m nightly runs them"
    assert (left_out in result.stdout) == bool(nightly)
    if not options:
        assert all(f"1 tests do not run on 2 ranks: marked {name}" in result.stdout for name in selection.ONE_RANK)


@pytest.mark.parametrize("mark", ["serial", "launcher", "slurm"])
def test_marks_that_no_stage_meets_are_refused(session, mark):
    result = session(MARKED.replace("def test_several", f"@pytest.mark.{mark}\ndef test_several"), ranks=1)
    assert result.returncode != 0
    assert f"test_several is marked {mark} too: no stage runs it on several ranks" in result.stdout + result.stderr


def is_alive(pid: int) -> bool:
    """Whether a process runs; a dead one whose parent is dead too may stay as a zombie for a while."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_mpirun_kills_everything_at_its_timeout(mpirun, tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(
        "import os, time\n"
        "from mpi4py import MPI\n"
        "open(f'{MPI.COMM_WORLD.rank}.pid', 'w').write(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    with pytest.raises(pytest.fail.Exception, match="ran past 4 s"):
        mpirun(2, script, cwd=tmp_path, timeout=4)
    pids = [int(path.read_text()) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
