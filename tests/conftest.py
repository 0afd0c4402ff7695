"""Fixtures and rules shared by all tests.

Tests are size-agnostic: the same files run on one rank and under `mpirun -np N python -m pytest --with-mpi`. With more
than one rank `RankAgreement` makes the ranks' pytest sessions one: they agree on the list of tests, and after every
phase of every test on its outcome.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path

from hpcgnn import environment

environment.set_defaults()  # before anything loads torch or MPI, as the commands do

import h5py
import hpcgnn_native
import pytest
import selection
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings
from mpi4py import MPI

REPOSITORY = Path(__file__).resolve().parent.parent

# Seconds a rank waits for its peers after it failed or skipped; ranks that passed wait as long as the test's timeout.
PATIENCE = {"failed": 5.0, "skipped": 60.0}

# The same examples on all ranks and machines; with HPCGNN_EXAMPLES so many of those that --hypothesis-seed gives.
settings.register_profile(
    "hpcgnn",
    derandomize="HPCGNN_EXAMPLES" not in os.environ,
    max_examples=int(os.environ.get("HPCGNN_EXAMPLES", "25")),
    deadline=None,
    database=None,
    print_blob=True,
    # Ranks that measure times would stop at different examples; folders and ranks serve all examples of a test.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("short", settings.get_profile("hpcgnn"), max_examples=8)
settings.load_profile("hpcgnn")


class RankAgreement:
    """Pytest plugin: an outcome on one rank is the outcome on all ranks."""

    def __init__(self, config: pytest.Config, comm: MPI.Comm):
        self._config = config
        self._comm = comm.Dup()  # private: a test that fails half-way through a collective cannot disturb it
        self._collect_errors: list[str] = []
        self._disagreed_in: str | None = None

    def pytest_collectreport(self, report):
        if report.failed:
            self._collect_errors.append(f"{report.nodeid}\n{report.longreprtext}")

    def pytest_collection_finish(self, session):
        """Abort unless all ranks have the same tests in the same order. Collective."""
        names = [item.nodeid for item in session.items]
        digest = hashlib.sha256("\n".join(names + self._collect_errors).encode()).hexdigest()
        self._meet("failed", "the collection of tests", patience=60.0)
        everyone = self._comm.allgather((digest, len(names), self._collect_errors))
        if len({digest for digest, _, _ in everyone}) == 1:
            return
        lines = ["the ranks collected different tests"]
        for rank, (_, count, errors) in enumerate(everyone):
            lines.append(f"rank {rank}: {count} tests")
            lines += [f"rank {rank}: error in {error}" for error in errors]
        if self._comm.rank == 0:
            self._abort("\n".join(lines))
        time.sleep(60)  # rank 0 ends this process

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        text = "" if report.passed else _describe(report)
        self._meet(report.outcome, f"{item.nodeid} ({report.when})", text)
        self._merge(report, self._comm.allgather((report.outcome, text)))
        return report

    def _merge(self, report, everyone):
        """Turn the outcomes of all ranks into one, the same on every rank."""
        outcomes = [outcome for outcome, _ in everyone]
        disagree = len(set(outcomes)) > 1
        if not disagree and outcomes[0] != "failed":
            return
        report.outcome = "failed"
        if hasattr(report, "wasxfail"):
            del report.wasxfail
        parts = []
        if disagree:
            parts.append("the ranks disagree: " + ", ".join(f"rank {r} {o}" for r, o in enumerate(outcomes)))
        if self._disagreed_in:
            parts.append(f"messages left over by {self._disagreed_in}, where ranks disagreed, may be the cause")
        parts += [f"--- rank {rank} {outcome} ---\n{text}" for rank, (outcome, text) in enumerate(everyone) if text]
        report.longrepr = "\n".join(parts)
        report.sections = []
        if disagree and self._disagreed_in is None:
            self._disagreed_in = report.nodeid

    def _meet(self, outcome: str, where: str, text: str = "", patience: float | None = None):
        """Wait until all ranks are here; after a failure not for long, as the others may be blocked by it."""
        patience = PATIENCE.get(outcome) if patience is None else patience
        deadline = None if patience is None else time.monotonic() + patience
        request = self._comm.Ibarrier()
        pause = 1e-5
        while not request.Test():
            if deadline is not None and time.monotonic() > deadline:
                self._abort(f"{where} {outcome} here and other ranks did not finish it within {patience:g} s\n{text}")
            time.sleep(pause)  # blocking MPI calls spin and would take a core from the slower ranks
            pause = min(2 * pause, 1e-3)

    def pytest_keyboard_interrupt(self, excinfo):
        self._abort(f"interrupted: {excinfo.value!r}")

    def pytest_internalerror(self, excrepr):
        self._abort(f"internal error of pytest\n{excrepr}")

    def _abort(self, text: str):
        label = f"rank {self._comm.rank} of {self._comm.size}: "
        with self._config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{label}{text}\n{label}aborting the test session", file=sys.stderr, flush=True)
        time.sleep(0.2)  # lets the launcher forward the text before it kills everything
        self._comm.Abort(1)


def _describe(report) -> str:
    """What one rank has to say about its failure or skip: traceback and captured output."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    captured = [f"{title}:\n{content}" for title, content in report.sections if content]
    return "\n".join([report.longreprtext, *captured])


def pytest_addoption(parser):
    parser.addoption("--kernels", help="the build of the CPU kernels to test, such as x86_64_v3 (default: the best)")
    selection.add_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if config.getoption("--short"):
        settings.load_profile("short")
    if config.getoption("--kernels"):
        hpcgnn_native.use(config.getoption("--kernels"))
    selection.register(config, MPI.COMM_WORLD.size)
    if MPI.COMM_WORLD.size == 1:
        return
    config.pluginmanager.register(RankAgreement(config, MPI.COMM_WORLD), "rank-agreement")
    if MPI.COMM_WORLD.rank > 0:
        manager = config.pluginmanager
        manager.unregister(manager.getplugin("terminalreporter"))
        silent = open(os.devnull, "w")
        config.add_cleanup(silent.close)
        manager.register(TerminalReporter(config, silent), "terminalreporter")


@lru_cache
def _missing_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA device"


@lru_cache
def _missing_slurm() -> str | None:
    if shutil.which("sbatch") is None:
        return "needs Slurm, which tests/slurm/setup.sh installs and starts"
    try:
        subprocess.run(["sinfo"], capture_output=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "needs a Slurm that answers, such as tests/slurm/setup.sh starts"
    return None


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "emulated"])
def device(request):
    """Where the CUDA kernels run: on a device, or on host threads."""
    import devices

    if request.param == devices.EMULATED:
        pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    return devices.Device(request.param)


@pytest.fixture(params=["host", "emulated"])
def kernels(request):
    """Makes a context in which CPU tensors are the host's, or a device's."""
    if request.param == "host":
        return nullcontext
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    from hpcgnn.native import dispatch

    return dispatch.emulation


def _reason_to_skip(item) -> str | None:
    if item.get_closest_marker("slurm") and _missing_slurm():
        return _missing_slurm()
    if item.get_closest_marker("gpu") and _missing_gpu():
        return _missing_gpu()
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        reason = _reason_to_skip(item)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared_data():
    """A callable that turns a name such as "wikipedia/wikipedia.csv.gz" into a path, or skips the test."""
    root = Path(os.environ.get("HPCGNN_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")

    def find(name: str) -> Path:
        path = root / name
        if not path.exists():
            within = "" if root.exists() else ", a folder that is not there"
            pytest.skip(f"needs {name} below $HPCGNN_SHARED_DATA or ../shared/data{within}")
        return path

    return find


@pytest.fixture
def convert(tmp_path):
    """A callable `convert(preset, **files and settings)` that opens the graph it makes."""
    from convert_sources import assignments

    from data_tools.convert import main

    opened = []

    def run(preset: str, **sources) -> h5py.File:
        path = tmp_path / f"graph-{len(opened)}.h5"
        assert main(["--preset", preset, *assignments(sources), str(path)]) == 0
        opened.append(h5py.File(path))
        return opened[-1]

    yield run
    for file in opened:
        file.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MiB; skips who may mount none."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs permission to mount a small tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session")
def comm():
    """A communicator of all ranks for the tests' own messages. Collective."""
    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


@pytest.fixture(scope="module")
def world(comm):
    """All ranks, on the CPU, a thread each. Collective."""
    from hpcgnn.comm.world import CommConfig, World  # hpcgnn is not imported where tests are only chosen

    return World(CommConfig(device="cpu", threads=1, watchdog_seconds=0), comm)


@pytest.fixture(scope="module")
def channel(world):
    """Exchanges of all ranks. Collective."""
    return world.channel()


@pytest.fixture
def mpi_tmp_path(comm):
    """An empty folder, the same on all ranks, removed afterwards. Collective."""
    path = Path(comm.bcast(tempfile.mkdtemp(prefix="hpcgnn-test-") if comm.rank == 0 else None))
    yield path
    if comm.rank == 0:  # no barrier: the ranks met after the test's call phase
        shutil.rmtree(path, ignore_errors=True)


class Mpirun:
    """Starts `mpirun -np N python ...`."""

    def __init__(self):
        from faults.machine import find_mpirun

        self.path = find_mpirun()
        if self.path is None:
            pytest.skip("needs mpirun, beside the Python in use or on PATH")
        version = subprocess.run([self.path, "--version"], capture_output=True, text=True, timeout=60).stdout
        self.command = ["bash", str(REPOSITORY / "jobs" / "clean_start.sh"), self.path]
        self.flags, self.environment = [], {}
        self.is_open_mpi = "Open MPI" in version
        if self.is_open_mpi:
            # Libfabric, of no use on one machine, sleeps a second in every start.
            # Ranks that wait leave their core to others: test machines are shared.
            self.environment = {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mpi_yield_when_idle": "1"}
            # Not bound to cores: test machines are shared, and two jobs would be bound to the same first core.
            self.flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        self._started: list[subprocess.Popen] = []

    def popen(self, np: int, *args, env: dict | None = None, cwd=None, **options) -> subprocess.Popen:
        """Start `python args...` on np ranks and return at once; output is piped as text unless `options` differ.

        What is still running when the test session ends is killed.
        """
        command = [*self.command, "-np", str(np), *self.flags, sys.executable, *map(str, args)]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        environment = clean_environment() | self.environment | (env or {})
        process = subprocess.Popen(command, env=environment, cwd=cwd, start_new_session=True, **options)
        self._started.append(process)
        return process

    def __call__(self, np: int, *args, env=None, timeout=1000, cwd=None, check=True) -> subprocess.CompletedProcess:
        """Run `python args...` on np ranks to its end; its process group does not outlive `timeout` seconds."""
        process = self.popen(np, *args, env=env, cwd=cwd)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill(process)
            out, err = process.communicate()
            pytest.fail(f"{process.args} ran past {timeout} s\nstdout:\n{out}\nstderr:\n{err}")
        if check and process.returncode != 0:
            pytest.fail(f"{process.args} exited with {process.returncode}\nstdout:\n{out}\nstderr:\n{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @staticmethod
    def kill(process: subprocess.Popen):
        """Kill mpirun and all it started; launchers give ranks process groups of their own but keep the session."""
        for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
            try:
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self):
        for process in self._started:
            if process.poll() is None:
                self.kill(process)
                process.communicate()


def clean_environment() -> dict[str, str]:
    """The environment without what an enclosing mpirun left in it, which would make a new one join the old job."""
    launcher = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "HYDI_", "MPI_LOCAL")
    return {name: value for name, value in os.environ.items() if not name.startswith(launcher)}


@pytest.fixture(scope="session")
def mpirun():
    """A callable `mpirun(np, *args, env=None, timeout=1000, cwd=None, check=True)`; see `Mpirun`."""
    launcher = Mpirun()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def jobs(mpirun):
    """A callable `jobs(ranks, *command, check=True, timeout=1000)`, one mpirun for each number of ranks; see
    `waiting_jobs.Jobs`."""
    from waiting_jobs import Jobs

    started = Jobs(mpirun)
    yield started
    started.close()
