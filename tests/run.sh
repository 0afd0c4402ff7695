#!/usr/bin/env bash
# Sets up .venv and runs the checks: `bash tests/run.sh [--all] [STAGE...]`
#
#   lint    ruff, mypy, clang-format, shellcheck
#   unit    tests of one process, and those that know ranks and have their turn on one
#   launch  tests that start ranks themselves: jobs that are killed, stopped, resumed
#   mpi     tests that know ranks and have their turn on 2, 3 or 4
#   slurm   the job scripts under a real Slurm, started when this is root on Debian or Ubuntu
#   mpi1 mpi2 mpi3 mpi4   all tests that know ranks on so many
#
# Without a stage: the first five. Without --all, which CI runs (by HPCGNN_SUITE=all), it is the short suite: of the tests
# that start ranks or need Slurm those that tests/core.toml lists, and few examples of a property. CONTRIBUTING.md says
# what each of the two proves. PYTEST_ADDOPTS reaches every pytest. A stage may take as long as it takes, but one that says
# nothing for IDLE_MINUTES (default: 35) is ended and has failed. tests/skips.toml has what may be skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Longer than the limit of any single test, which says more about what hangs.
readonly IDLE_MINUTES=${IDLE_MINUTES:-35}

# Where a stage's time goes.
readonly DURATIONS=(--durations=30 --durations-min=0.5)

SUITE=(--short)

# Of the stage launch: tests that wait for a signal, a kill, a hang or a clock.
readonly TIMED=(
    tests/commands/test_{bad_input,faults,jobs,own_loop,sites,sweep}.py tests/loop
    tests/repository/test_{gpu_check,waiting_jobs}.py tests/static/test_sampler_failures.py
)

# Scratch files lie in memory where 4 GiB of it are free: most of them live for less than a second.
readonly SCRATCH_KIB=$((4 << 20))

SUMMARY=()
FAILED=0
NOTE= # what the stage left out, for the summary

can_install() {
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null
}

# Makes the folder of all temporary files, and of what tests keep for each other; it goes when the script ends.
make_scratch() {
    local free
    free=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1) || true
    if ((${free:-0} > SCRATCH_KIB)); then
        TMPDIR=$(mktemp -d /dev/shm/hpcgnn-tests-XXXXXX)
    else
        TMPDIR=$(mktemp -d)
    fi
    mkdir "$TMPDIR/kept"
    export TMPDIR HPCGNN_TESTS_KEEP=$TMPDIR/kept
    trap 'rm -rf "$TMPDIR"' EXIT
}

# Runs a command for as long as it says something now and then.
patiently() {
    python tests/idle_timeout.py --minutes "$IDLE_MINUTES" -- "$@"
}

lint() {
    local native scripts status=0
    mapfile -t native < <(git ls-files -- 'native/*.h' 'native/*.cpp' 'native/*.cu' 'native/*.cuh')
    mapfile -t scripts < <(git ls-files -- '*.sh' '*.slurm' .ci/run .ci/release)
    ruff check . || status=1
    ruff format --check . || status=1
    mypy || status=1
    if ((${#native[@]})); then
        clang-format --dry-run --Werror "${native[@]}" || status=1
    fi
    if command -v shellcheck >/dev/null; then
        shellcheck -x "${scripts[@]}" || status=1
    else
        NOTE="no shellcheck: shell scripts are not checked"
        ! can_install || status=1
    fi
    return "$status"
}

# Tests in one process run side by side.
unit() {
    patiently python -m pytest "${DURATIONS[@]}" "${SUITE[@]}" -n auto --maxprocesses 4 --dist loadfile \
        -m "not slurm and not launcher and not nightly" "$@"
}

# Tests that start ranks leave cores idle while programs start and end: two side by side, but for those that need the
# cores at their moment.
launch() {
    local flags=("${DURATIONS[@]}" "${SUITE[@]}" -m "launcher and not slurm and not nightly") status=0
    patiently python -m pytest "${flags[@]}" -n 2 --dist worksteal "${TIMED[@]/#/--ignore=}" || status=$?
    patiently python -m pytest "${flags[@]}" "${TIMED[@]}" || status=$?
    return "$status"
}

# Python's own dump of all threads is the only word from a rank that is stuck inside MPI. Ranks that wait leave their core
# to others: a rank that spins costs most where the machine does other work as well.
mpi() {
    local flags=(-np "$1")
    shift
    if [[ $(mpirun --version) == *"Open MPI"* ]]; then
        flags+=(--oversubscribe --mca mpi_yield_when_idle 1)
        [[ $(id -u) != 0 ]] || flags+=(--allow-run-as-root)
    fi
    patiently bash jobs/clean_start.sh mpirun "${flags[@]}" \
        python -m pytest --with-mpi -p no:cacheprovider -m "not launcher and not serial and not nightly" \
        --color=no -o faulthandler_timeout=900 "${DURATIONS[@]}" "${SUITE[@]}" "$@"
}

# Beside each other: while some ranks wait for one that works, the others' have the cores.
mpi_once() {
    local ranks status=0 logs
    local -A started
    logs=$(mktemp -d)
    for ranks in 3 4; do
        mpi "$ranks" --once >"$logs/$ranks" 2>&1 &
        started[$ranks]=$!
    done
    mpi 2 --once || status=$?
    for ranks in 3 4; do
        wait "${started[$ranks]}" || status=$?
        cat "$logs/$ranks"
    done
    rm -r "$logs"
    return "$status"
}

# Only who has no Slurm and cannot install one may go without.
slurm() {
    if ! command -v sbatch >/dev/null && ! can_install; then
        NOTE="no sbatch, and only root can install Slurm, by apt-get"
        return 77
    fi
    bash tests/slurm/setup.sh || return 1
    patiently python -m pytest "${DURATIONS[@]}" "${SUITE[@]}" -m "slurm"
}

# Runs a stage and notes how it went; 77 means skipped.
stage() {
    local name=$1 start=$SECONDS code=0 verdict
    shift
    NOTE=
    echo "=== $name ==="
    "$@" || code=$?
    case $code in
        0) verdict=passed ;;
        77) verdict=skipped ;;
        124) verdict="FAILED (a command was ended: it said nothing for $IDLE_MINUTES minutes)" FAILED=1 ;;
        *) verdict="FAILED (exit code $code)" FAILED=1 ;;
    esac
    SUMMARY+=("$(printf '%-6s %4d s  %s' "$name" $((SECONDS - start)) "$verdict${NOTE:+ ($NOTE)}")")
}

run_stage() {
    case $1 in
        lint | launch | slurm) stage "$1" "$1" ;;
        unit) stage unit unit --once ;;
        mpi) stage mpi mpi_once ;;
        mpi1) stage mpi1 unit -m "not launcher and not serial and not slurm and not nightly" ;;
        mpi[2-9]) stage "$1" mpi "${1#mpi}" ;;
        *)
            echo "unknown stage $1: lint unit launch mpi mpi1 mpi2 mpi3 mpi4 slurm" >&2
            exit 2
            ;;
    esac
}

main() {
    [[ ${HPCGNN_SUITE:-} != all ]] || SUITE=()
    if [[ ${1:-} == --all ]]; then
        SUITE=()
        shift
    fi
    bash tests/setup.sh
    # shellcheck source=/dev/null
    source .venv/bin/activate
    (($#)) || set -- lint unit launch mpi slurm
    make_scratch
    for name in "$@"; do
        run_stage "$name"
    done
    echo "=== summary ==="
    printf '%s\n' "${SUMMARY[@]}"
    return "$FAILED"
}

main "$@"
