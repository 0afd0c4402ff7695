#!/usr/bin/env bash
# Sets up .venv and runs the checks: `bash tests/run.sh [STAGE...]`
#
#   lint    ruff, mypy, clang-format, shellcheck
#   unit    pytest on one rank
#   mpi     pytest on 2, 3 and 4 ranks, each on every third file (whole: mpi2 mpi3 mpi4)
#   slurm   the job scripts under a real Slurm, started when this is root on Debian or Ubuntu
#
# Without arguments: all of them. PYTEST_ADDOPTS reaches every pytest. A stage may take as long as it takes, but one that
# says nothing for IDLE_MINUTES (default: 35) is ended and has failed. tests/skips.toml has what may be skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Longer than the limit of any single test, which says more about what hangs.
readonly IDLE_MINUTES=${IDLE_MINUTES:-35}

# Where a stage's time goes.
readonly DURATIONS=(--durations=30 --durations-min=0.5)

SUMMARY=()
FAILED=0
NOTE= # what the stage left out, for the summary

can_install() {
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null
}

# Runs a command for as long as it says something now and then.
patiently() {
    python tests/idle_timeout.py --minutes "$IDLE_MINUTES" -- "$@"
}

lint() {
    local native scripts status=0
    mapfile -t native < <(git ls-files -- 'native/*.h' 'native/*.cpp' 'native/*.cu' 'native/*.cuh')
    mapfile -t scripts < <(git ls-files -- '*.sh' '*.slurm' .ci/run)
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

# Tests in one process run side by side; those that start ranks of their own need the cores for these.
unit() {
    local status=0
    patiently python -m pytest "${DURATIONS[@]}" -m "not slurm and not launcher and not nightly" -n auto --maxprocesses 4 --dist loadfile || status=$?
    patiently python -m pytest "${DURATIONS[@]}" -m "launcher and not slurm and not nightly" || status=$?
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
        python -m pytest --with-mpi -p no:cacheprovider -m "not launcher and not serial and not nightly" --color=no \
        -o faulthandler_timeout=900 "${DURATIONS[@]}" "$@"
}

# Only who has no Slurm and cannot install one may go without.
slurm() {
    if ! command -v sbatch >/dev/null && ! can_install; then
        NOTE="no sbatch, and only root can install Slurm, by apt-get"
        return 77
    fi
    bash tests/slurm/setup.sh || return 1
    patiently python -m pytest "${DURATIONS[@]}" -m slurm
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
        lint | unit | slurm) stage "$1" "$1" ;;
        mpi)
            for ranks in 2 3 4; do
                stage "mpi$ranks" mpi "$ranks" --share "$((ranks - 1))/3"
            done
            ;;
        mpi[2-9]) stage "$1" mpi "${1#mpi}" ;;
        *)
            echo "unknown stage $1: lint unit mpi mpi2 mpi3 mpi4 slurm" >&2
            exit 2
            ;;
    esac
}

main() {
    bash tests/setup.sh
    # shellcheck source=/dev/null
    source .venv/bin/activate
    (($#)) || set -- lint unit mpi slurm
    for name in "$@"; do
        run_stage "$name"
    done
    echo "=== summary ==="
    printf '%s\n' "${SUMMARY[@]}"
    return "$FAILED"
}

main "$@"
