"""The job scripts' library without Slurm: the workstation profile with a stand-in for the trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import REPOSITORY

pytestmark = pytest.mark.launcher


def steps_of(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def heed_interrupts() -> None:
    """A shell starts background commands with SIGINT ignored, and a script cannot trap what its parent ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start(mpirun, tmp_path):
    """A callable that starts the stub's job script as `bash script` does; what is left of it is killed at the end."""
    started = []

    def start(*arguments, script: Path | None = None, **settings) -> subprocess.Popen:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_", "SLURM_"))}
        kept["PATH"] = f"{Path(mpirun.path).parent}:{kept['PATH']}"
        process = subprocess.Popen(
            ["bash", script or "tests/slurm/stub.slurm", str(tmp_path / "run"), *map(str, arguments)],
            cwd=REPOSITORY,
            env={**kept, **mpirun.environment, "HPCGNN_SITE": "workstation", **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        mpirun.kill(process)
        process.communicate()


def interrupt(process: subprocess.Popen, run: Path, after: int, number: int = signal.SIGUSR1):
    """Signal the script once the run has `after` steps; SIGINT goes to the whole process group, as from a terminal."""
    deadline = time.monotonic() + 60
    while len(steps_of(run)) < after:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_interrupted_script_checkpoints_and_goes_on_when_started_again(start, tmp_path, number):
    first = start("--steps", 30)
    interrupt(first, tmp_path / "run", 5, number)
    output = first.communicate(timeout=60)[0]
    assert first.returncode == 75, output
    assert len(steps_of(tmp_path / "run")) < 30
    second = start()
    output = second.communicate(timeout=60)[0]
    assert second.returncode == 0, output
    assert "--resume" in output
    assert steps_of(tmp_path / "run") == list(range(30))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_launcher_that_is_a_shell_script_hands_interrupts_on(start, mpirun, tmp_path, number):
    """Intel MPI's mpirun is one, which a signal ends without a word to what it runs."""
    wrapper, script = tmp_path / "mpirun", tmp_path / "job"
    wrapper.write_text(f'#!/bin/sh\n{mpirun.path} {" ".join(mpirun.flags)} "$@" <&0\nrc=$?\nexit $rc\n')
    wrapper.chmod(0o755)
    launch = f"load_site\nLAUNCH=($(shield) {wrapper} -np 2)\n"
    script.write_text((REPOSITORY / "tests/slurm/stub.slurm").read_text().replace("load_site\n", launch))
    job = start("--steps", 30, script=script)
    interrupt(job, tmp_path / "run", 5, number)
    output = job.communicate(timeout=60)[0]
    assert (job.returncode, "] checkpointed; started with" in output) == (75, True), output
    assert len(steps_of(tmp_path / "run")) < 30


def test_script_repeats_by_itself_when_told(start, tmp_path):
    process = start("--steps", 30, HPCGNN_REQUEUE="repeat")
    interrupt(process, tmp_path / "run", 5)
    interrupt(process, tmp_path / "run", 20)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert output.count("--resume") == 2
    assert steps_of(tmp_path / "run") == list(range(30))


def test_failure_is_passed_on(start):
    process = start("--unknown")
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 2, output


def test_a_launcher_that_ends_too_early_is_not_believed(start):
    """Open MPI's mpirun ends with 0 when it loses a machine."""
    process = start("--steps", 3, "--lost")
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 1, output
    assert "not at its end" in output


def test_interrupted_before_it_can_answer(start, tmp_path):
    """A signal that comes while the program is being loaded ends it; the script asks to be started again."""
    process = start("--steps", 3, "--deaf", 30)
    while process.stdout.readline() != "deaf\n":
        assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 75, output
    assert "before it could answer" in output
    assert "] no new checkpoint; started with" in output
    output = start("--steps", 3).communicate(timeout=60)[0]
    assert steps_of(tmp_path / "run") == [0, 1, 2], output


def test_remains_of_a_killed_launcher_are_not_in_the_way(start, tmp_path):
    """Every process id that the launcher may get was one's that left its folder of sockets."""
    newest = subprocess.Popen("true")
    newest.wait()
    ids = int(Path("/proc/sys/kernel/pid_max").read_text())
    remains = [tmp_path / f"ompi.{(newest.pid + later) % ids}" for later in range(min(ids, 4000))]
    for folder in remains:
        folder.mkdir()
        (folder / folder.name.replace("ompi", f"pmix.{os.uname().nodename}.tool")).write_text("of a dead one")
    output = start("--steps", 3, TMPDIR=str(tmp_path)).communicate(timeout=60)[0]
    assert steps_of(tmp_path / "run") == [0, 1, 2], output
    assert sum(folder.exists() for folder in remains) == len(remains) - 1


def test_restarts_are_limited(start, tmp_path):
    process = start("--steps", 30, HPCGNN_REQUEUE="repeat", SLURM_RESTART_COUNT="100")
    interrupt(process, tmp_path / "run", 5)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 75, output
    assert "giving up" in output


def test_recipe_names_where_it_looked_for_the_library(tmp_path):
    """Slurm runs a copy of the script; here the copy is all there is."""
    copy = tmp_path / "slurm_script"
    copy.write_text((REPOSITORY / "jobs" / "train_tgn.slurm").read_text())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    run = subprocess.run(["bash", copy], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "Submit from the folder above jobs, or set HPCGNN_JOBS" in run.stderr


SLURM = """#!/bin/bash
# Fails so often, then answers.
echo "$0 $*" >>"$CALLS"
(($(grep -c "^$0 " "$CALLS") > FAILURES)) || exit 1
[[ $0 != */squeue ]] || printf 'RUNNING\n%.0s' $(seq "${COMPONENTS:-1}")
"""
LIBRARY = """
set -euo pipefail
source jobs/lib.sh
RETRY_SECONDS=0
launch() {
    local folder=${!#}/checkpoints
    echo started
    steps=$((${steps:-0} + ${PROGRESS:-0}))
    folder+=/step-$(printf %05d "$steps")
    mkdir -p "$folder"
    touch "$folder/manifest.json"
    return "${CODE:-75}"
}
REQUEUE=$HOW
MAX_STALLED=${ALLOWED:-3}
MAX_RESTARTS=${STARTS_AGAIN:-100}
PYTHON=$ANSWERS
run_with_requeue "$RUN" program --
"""


@pytest.fixture
def interrupted(tmp_path):
    """A callable that runs the library with a program that always asks to be started again; commands of Slurm are
    pretended. Returns what was printed, and the commands that were called."""
    for name in ("squeue", "scontrol", "scancel"):
        (tmp_path / name).write_text(SLURM)
        (tmp_path / name).chmod(0o755)

    def run(code: int = 75, **settings) -> tuple[str, list[str]]:
        calls = tmp_path / "calls"
        calls.write_text("")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        environment |= {"PATH": f"{tmp_path}:{environment['PATH']}", "CALLS": str(calls), "RUN": str(tmp_path / "run")}
        environment |= {"SLURM_JOB_ID": "7", "HPCGNN_RUN": "7", "FAILURES": "0", "HOW": "scontrol"}
        environment |= {"ANSWERS": sys.executable, **settings}
        result = subprocess.run(
            ["bash", "-c", LIBRARY], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60,
            start_new_session=True,
        )  # fmt: skip
        assert result.returncode == code, result.stderr
        return result.stdout + result.stderr, [Path(line).name for line in calls.read_text().splitlines()]

    return run


@pytest.mark.parametrize("failures", [0, 1, 4])
def test_slurm_is_asked_again_when_it_does_not_answer(interrupted, failures):
    """A job is requeued although squeue and scontrol failed before."""
    output, calls = interrupted(FAILURES=str(failures), PROGRESS="1")
    assert calls.count("scontrol requeue 7") == failures + 1, output
    assert "cancelled" not in output


def test_a_job_of_several_components_is_requeued(interrupted):
    """squeue has a line for each."""
    output, calls = interrupted(PROGRESS="1", COMPONENTS="2")
    assert "scontrol requeue 7" in calls, output


ARRAY = {"HOW": "array", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_MAX": "5"}


def test_the_next_element_of_an_array_goes_on_as_long_as_there_is_one(interrupted):
    output, calls = interrupted(code=0, PROGRESS="1", SLURM_ARRAY_TASK_ID="4", **ARRAY)
    assert "the next element" in output
    assert not any("scancel" in call for call in calls)
    output, _ = interrupted(PROGRESS="1", SLURM_ARRAY_TASK_ID="5", **ARRAY)
    assert "no further element" in output


def test_elements_of_an_array_do_not_wait_for_a_run_that_gets_no_further(interrupted):
    rest = "scancel --state=PENDING 7"
    assert rest in interrupted(SLURM_RESTART_COUNT="100", SLURM_ARRAY_TASK_ID="2", **ARRAY)[1]
    assert rest in interrupted(ALLOWED="1", SLURM_ARRAY_TASK_ID="2", **ARRAY)[1]
    assert rest in interrupted(code=2, CODE="2", SLURM_ARRAY_TASK_ID="2", **ARRAY)[1]


def test_a_slurm_that_never_answers_is_named(interrupted):
    output, calls = interrupted(FAILURES="100", PROGRESS="1")
    assert "Slurm does not answer: squeue" in output
    assert len(calls) == 5


def test_a_run_without_progress_is_not_started_forever(interrupted):
    """Neither by the script itself, nor by jobs one after the other."""
    output, _ = interrupted(HOW="repeat")
    assert output.count("started") == 4  # the first start leaves the first checkpoint
    assert "no new checkpoint in 3 starts: giving up" in output
    outputs = [interrupted()[0] for _ in range(3)]
    assert ["giving up" in output for output in outputs] == [False, False, True]


def test_a_run_with_progress_is_started_as_often_as_allowed(interrupted):
    output, _ = interrupted(HOW="repeat", PROGRESS="1", STARTS_AGAIN="5")
    assert output.count("started\n") == 6
    assert "started again 5 times already" in output


def test_a_signal_to_all_processes_before_the_start(interrupted, tmp_path):
    """It does not end the program that decides about the start; nothing is started that would not hear it."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nkill -TERM 0\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    output, calls = interrupted(ANSWERS=str(tmp_path / "python"))
    assert "interrupted by SIGTERM" in output
    assert "started\n" not in output
    assert "interrupted before it could answer" in output
    assert "scontrol requeue 7" in calls
