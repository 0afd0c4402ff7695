#!/usr/bin/env bash
# Runs the tests under MPICH: `bash tests/second_mpi.sh [RANKS...]` (default: 1 2 3 4; on 1 rank, those that start ranks
# themselves). .venv-mpich is made like .venv, with the mpich wheel in place of Open MPI's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Minutes without any output after which a pytest is ended: longer than the limit of any single test.
readonly IDLE_MINUTES=${IDLE_MINUTES:-35}
# MPICH has 2,048 communicators in a process, and sessions that tests leave behind keep theirs.
readonly FILES_AT_ONCE=6
readonly NO_TESTS=5 # pytest's exit code
readonly SKIPS=(
    "--allow-skip=only Open MPI must answer" "--allow-skip=needs a ParMETIS that is built for the MPI in use"
)

# Runs a command for as long as it says something now and then.
patiently() {
    python tests/idle_timeout.py --minutes "$IDLE_MINUTES" -- "$@"
}

install() {
    [[ -e .venv-mpich/bin/pip ]] || python3 -m venv .venv-mpich
    # shellcheck source=/dev/null
    source .venv-mpich/bin/activate
    ! .venv-mpich/bin/python -c "import hpcgnn.native.build, pytest" 2>/dev/null || return 0
    pip install -q -c constraints.txt torch scikit-build-core nanobind ninja
    pip install -q -c constraints.txt --no-build-isolation -e ".[mpich,test]"
}

run_pieces() {
    local ranks=$1 status=0 code start
    for ((start = 0; start < ${#files[@]}; start += FILES_AT_ONCE)); do
        patiently mpirun -np "$ranks" python -m pytest --with-mpi -p no:cacheprovider -q \
            -m "not launcher and not serial" --color=no -o faulthandler_timeout=900 "${SKIPS[@]}" \
            "${files[@]:start:FILES_AT_ONCE}" || {
            code=$?
            ((code == NO_TESTS)) || status=$code # files whose tests are all for one rank
        }
    done
    return "$status"
}

main() {
    local failed=0
    install
    mapfile -t files < <(git ls-files -- ':(glob)tests/**/test_*.py') # by name: what takes long runs, too
    (($#)) || set -- 1 2 3 4
    for ranks in "$@"; do
        echo "=== MPICH, $ranks ranks ==="
        if [[ $ranks == 1 ]]; then
            patiently python -m pytest -q -m "launcher and not slurm" "${SKIPS[@]}" "${files[@]}" || failed=1
        else
            run_pieces "$ranks" || failed=1
        fi
    done
    return "$failed"
}

main "$@"
