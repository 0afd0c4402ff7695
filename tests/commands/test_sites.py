"""Site profiles where their batch systems are not: the commands that they call are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_jobs import REPOSITORY, interrupt, steps_of

pytestmark = pytest.mark.launcher

QSTAT = """#!/usr/bin/env bash
[[ "$*" == "-f 12[3].server" ]] || exit 1
printf 'Job Id: 12[3].server\\n    Resource_List.select = 1:ncpus=2:mpiprocs=2\\n'
printf '    Resource_List.walltime = 01:00:08\\n    resources_used.walltime = 00:00:01\\n'
"""
FLUX = """#!/usr/bin/env bash
case "$*" in
    "getattr jobid") echo ƒ2bc ;;
    "job timeleft") echo 3608 ;;
    "job last") cat "$FAKE/pid" ;;
    "job kill --signal=USR1 "*) kill -USR1 "$4" ;;
    "resource list --states=up --no-header --format={ncores}") echo 2 ;;
    "run --ntasks=2 "*)
        shift 2
        [[ $1 != --setopt=* ]] || shift
        echo $$ >"$FAKE/pid"
        exec mpirun -np 2 $MPIRUN_FLAGS "$@" ;;
    *) echo "no such flux command: $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def environment(mpirun, tmp_path) -> dict[str, str]:
    """Of a job script that finds the stand-ins before all else."""
    for name, text in {"qstat": QSTAT, "flux": FLUX}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    launcher = ("OMPI_", "PMIX_", "SLURM_", "PBS_", "FLUX_", "HPCGNN_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    kept["PATH"] = f"{tmp_path}:{Path(mpirun.path).parent}:{kept['PATH']}"
    root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")  # of .venv, which jobs use
    return kept | root | mpirun.environment | {"FAKE": str(tmp_path), "MPIRUN_FLAGS": " ".join(mpirun.flags)}


PBS = {"PBS_JOBID": "12[3].server", "PBS_ARRAY_INDEX": "3"}
FLUX_JOB = {"FLUX_URI": "local:///run/flux"}
SLURM_ARRAY = {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "14", "SLURM_ARRAY_TASK_ID": "2", "HPCGNN_SITE": "generic"}


def told_by_library(program: str, environment: dict[str, str]) -> str:
    """What a script prints that sources the library."""
    command = ["bash", "-c", f"set -euo pipefail; source jobs/lib.sh; {program}"]
    run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("job", "folder", "seed"),
    [
        (PBS, "runs/gat-12-seed-3", "--train.seed 3 "),
        (FLUX_JOB, "runs/gat-f2bc", ""),
        (SLURM_ARRAY, "runs/gat-14-seed-2", "--train.seed 2 "),
        ({**SLURM_ARRAY, "REQUEUED": "array"}, "runs/gat-14", ""),
        ({"SLURM_JOB_ID": "15"}, "runs/gat-15", ""),
        ({"HPCGNN_RUN": "mine"}, "runs/gat-mine", ""),
    ],
)
def test_elements_of_an_array_are_seeds_in_folders_of_their_own(environment, job, folder, seed):
    """Unless they are there to go on with one run."""
    environment |= job | {"PBS_NODEFILE": f"{environment['FAKE']}/nodes"}
    program = 'REQUEUE=${REQUEUED:-scontrol}; run_with_requeue() { echo "$@"; }; train_recipe gat --train.epochs 1'
    told = told_by_library(program, environment)
    expected = f"{folder} python -m hpcgnn.train -- --config jobs/recipes/gat.yaml {seed}--train.epochs 1"
    assert told.splitlines()[-1] == expected, told


def test_a_refusal_ends_the_job_with_its_code(environment):
    command = ["bash", "-c", "set -euo pipefail; source jobs/lib.sh; train_recipe gat --resume runs/old; echo on"]
    run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
    assert (run.returncode, "leave out --resume" in run.stderr, "on\n" in run.stdout) == (2, True, False)


def test_ranks_get_the_environment_of_the_script(environment):
    """Of a job that was submitted with --export=NONE as well, which srun would repeat."""
    exported = told_by_library("load_site; env", environment | {"SLURM_JOB_ID": "15", "SLURM_EXPORT_ENV": "NONE"})
    assert "SLURM_EXPORT_ENV=ALL" in exported.splitlines()


def test_modules_may_read_what_nobody_has_set(environment):
    """As those of sites do; the script itself refuses to."""
    load = 'module() { echo "$1 $2$OF_THE_SITE"; }; load_site; echo "${LAUNCH[0]}"'
    told = told_by_library(load, environment | {"HPCGNN_SITE": "cray-mpich"}).splitlines()
    assert (told[0], told[-1]) == ("load cray-mpich", "srun")
    command = ["bash", "-c", 'set -u; source jobs/lib.sh; module() { :; }; load_site; echo "$OF_THE_SITE"']
    run = subprocess.run(
        command, cwd=REPOSITORY, env=environment | {"HPCGNN_SITE": "cray-mpich"}, capture_output=True, timeout=60
    )
    assert b"OF_THE_SITE: unbound variable" in run.stderr


def test_amd_gpus_of_a_cray_need_further_modules(environment):
    load = 'module() { echo "$*"; }; load_site; echo "$MPICH_GPU_SUPPORT_ENABLED"'
    told = told_by_library(load, environment | {"HPCGNN_SITE": "cray-mpich-amd"}).splitlines()
    assert [told[0], told[1], told[-1]] == ["load rocm craype-accel-amd-gfx90a", "load cray-mpich cray-python", "1"]


@pytest.mark.parametrize("site", ["cray-mpich", "cray-mpich-amd"])
def test_ranks_see_all_gpus_of_a_cray(environment, site):
    """One that is shown its own GPU alone cannot open the memory of the others."""
    load = 'module() { :; }; load_site; echo "${LAUNCH[@]}"'
    told = told_by_library(load, environment | {"HPCGNN_SITE": site})
    assert "--gpu-bind=none" in told.split()
    assert "--gpus-per-task" not in told


def test_ranks_run_in_containers_of_an_image(environment):
    told = told_by_library('load_site; echo "${LAUNCH[@]}"', environment | {"HPCGNN_IMAGE": "my images/hpcgnn.sif"})
    assert told.rstrip().endswith(" apptainer exec my images/hpcgnn.sif")


def test_outside_of_the_image_no_python_is_needed(environment, tmp_path):
    """What is decided about the run is decided in a container as well."""
    inside = f'[ "$1 $2 $3" = "exec my image.sif python" ] || exit 1\nshift 3\nexec {sys.executable} "$@"'
    for name, text in {"apptainer": inside, "python": "exit 127"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    program = f"""
        activate_venv() {{ :; }}
        launch() {{ echo "$*"; return 75; }}
        train_recipe gat --output.dir "{tmp_path}/a run"
    """
    (tmp_path / "a run" / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "a run" / "checkpoints" / "step-1" / "manifest.json").touch()
    command = ["bash", "-c", f"set -euo pipefail; source jobs/lib.sh; {program}"]
    environment |= {"HPCGNN_IMAGE": "my image.sif", "HPCGNN_RUN": "mine"}
    run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 75, run.stderr
    assert f"python -m hpcgnn.train --resume {tmp_path}/a run\n" in run.stdout
    assert "] no new checkpoint; started with HPCGNN_RUN=mine" in run.stdout


@pytest.mark.parametrize(("version", "is_open"), [("Intel(R) MPI Library", False), ("mpirun (Open MPI) 5.0.8", True)])
@pytest.mark.parametrize("site", ["generic", "pbs", "workstation"])
def test_options_of_open_mpi_go_to_no_other_launcher(environment, site, version, is_open):
    """Another mpirun ends with an error of its own."""
    job = PBS | {"PBS_NODEFILE": f"{environment['FAKE']}/nodes", "HPCGNN_SITE": site, "SLURM_CPUS_PER_TASK": "2"}
    load = f'mpirun() {{ echo "{version}"; }}; id() {{ echo 0; }}; load_site; echo "${{LAUNCH[*]}}"'
    options = set(told_by_library(load, environment | job).splitlines()[-1].split())
    assert ("--allow-run-as-root" in options) == is_open
    assert (options & {"--map-by", "--bind-to", "--oversubscribe"} != set()) == (is_open and site != "pbs")


@pytest.mark.parametrize(("site", "launch"), [
    ("intel-mpi", "env --block-signal=TERM,INT mpiexec.hydra"),
    ("srun-pmi2", "srun --mpi=pmi2 --kill-on-bad-exit=1 --cpus-per-task=2"),
])  # fmt: skip
def test_profiles_of_intel_mpi_and_mpich_take_their_module_of_mpi4py(environment, site, launch):
    told = told_by_library(
        'load_site; echo "${LAUNCH[*]}"; bash -c "echo \\$MPI4PY_MPIABI"',
        environment | {"HPCGNN_SITE": site, "SLURM_CPUS_PER_TASK": "2"},
    )
    assert told.splitlines()[-2:] == [launch, "mpich"]


def test_profiles_tell_the_end_of_the_time(environment):
    for job in (PBS, FLUX_JOB):
        own = environment | job | {"PBS_NODEFILE": f"{environment['FAKE']}/nodes"}
        told = told_by_library('load_site; echo "$HPCGNN_JOB_END"', own)
        assert abs(int(told.splitlines()[-1]) - time.time() - 3608) < 8, told
    (Path(environment["FAKE"]) / "qstat").write_text("#!/bin/sh\nexit 1\n")
    own = environment | PBS | {"PBS_NODEFILE": f"{environment['FAKE']}/nodes"}
    assert told_by_library('load_site; echo "${HPCGNN_JOB_END:-unknown}"', own).splitlines()[-1] == "unknown"


@pytest.mark.parametrize("job", [PBS, FLUX_JOB], ids=["pbs", "flux"])
def test_interrupted_job_goes_on_in_the_next_of_its_name(environment, tmp_path, job):
    environment |= job | {"PBS_NODEFILE": str(tmp_path / "nodes"), "HPCGNN_RUN": "mine"}
    command = ["bash", "tests/slurm/stub.slurm", str(tmp_path / "run"), "--steps", "30"]
    options = {"cwd": REPOSITORY, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, start_new_session=True, **options) as first:
        interrupt(first, tmp_path / "run", 5)
        output = first.communicate(timeout=60)[0]
    assert first.returncode == 75, output
    assert "HPCGNN_RUN=mine" in output
    second = subprocess.run(command, text=True, timeout=60, **options)
    assert second.returncode == 0, second.stdout
    assert "--resume" in second.stdout
    assert steps_of(tmp_path / "run") == list(range(30))


def test_run_leaves_before_the_end_that_a_profile_tells(environment, tmp_path):
    """The trainer itself, in a PBS job of 25 seconds, of which its start takes some."""
    (tmp_path / "qstat").write_text(QSTAT.replace("01:00:08", "00:00:25"))
    environment |= PBS | {"PBS_NODEFILE": str(tmp_path / "nodes"), "HPCGNN_RUN": f"test-{os.getpid()}"}
    folder = REPOSITORY / "runs" / f"tgn-test-{os.getpid()}-seed-3"
    options = ["--train.epochs", "20000", "--train.early_stopping_patience", "0", "--data.synthetic_events", "500"]
    command = ["bash", "jobs/train_tgn.slurm", *options]
    try:
        run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=240)
        assert run.returncode == 75, run.stdout + run.stderr
        assert "minutes left; the run leaves" in run.stdout
        assert list(folder.glob("checkpoints/step-*/manifest.json"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
