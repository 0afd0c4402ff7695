#!/usr/bin/env bash
# What takes longer than CI may: `bash tests/nightly.sh [STAGE...]`. docs/hygiene.md has the outcome.
#
#   fuzz         changed inputs to all readers, other ones every day
#   properties   the properties of tests/properties on many more examples, other ones every day
#   soak         kills, hangs and lost nodes at random moments
#   long         the tests marked nightly: the commands of long pages of docs/, wikipedia on 1, 2, 4 and 8 ranks
#   ranks        all tests that know ranks on 1, 2, 3 and 4; CI runs each on one of these
#   browser      the report page in a headless browser
#   mpich        the tests under MPICH: those that start ranks themselves, and all on 2 ranks
#   mpich_more   all on 3 and 4 ranks under MPICH, whose ranks wait busily for a core
#   amd          the kernels of native/cuda compile for AMD GPUs
#   sanitize     the tests of native code under AddressSanitizer, UBSan and ThreadSanitizer
#   user         the package installed by another user than the owner of the checkout; as root
#   lowest       the package with the lowest versions that pyproject.toml allows; as root
#   next_debian  the package on Debian 13, in a folder of its own; as root
#   guard        results and times of this checkout beside those of yesterday's
#
# Without arguments: all of them. FUZZ_MINUTES, on every core, and SOAK_MINUTES are 60 each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly STAGES=(fuzz properties soak long ranks browser mpich mpich_more amd sanitize user lowest next_debian guard)
SUMMARY=()
FAILED=0

fuzz() {
    .venv/bin/python tests/fuzz.py --minutes "${FUZZ_MINUTES:-60}" --jobs "$(nproc)" --seed "$(date +%Y%m%d)"
}
properties() {
    local command=(-m pytest -q -p no:cacheprovider --timeout 5400 "--hypothesis-seed=$(date +%Y%m%d)" tests/properties)
    export HPCGNN_EXAMPLES=${HPCGNN_EXAMPLES:-500}
    .venv/bin/python "${command[@]}" && bash jobs/clean_start.sh .venv/bin/mpirun -np 3 --oversubscribe \
        --allow-run-as-root .venv/bin/python "${command[@]}" --with-mpi -m "not serial"
}
soak() { bash tests/soak.sh --minutes "${SOAK_MINUTES:-60}"; }
long() { bash tests/slurm/setup.sh; .venv/bin/python -m pytest -q -m nightly; }
ranks() { bash tests/run.sh --all mpi1 mpi2 mpi3 mpi4; }
browser() { .venv/bin/python -m pytest -q --no-skips tests/commands/test_report.py; }
mpich() { bash tests/second_mpi.sh 1 2; }
mpich_more() { bash tests/second_mpi.sh 3 4; }
amd() { bash tests/portable.sh amd; }
sanitize() { bash tests/sanitize.sh; }
user() { bash tests/installed.sh user; }
lowest() { bash tests/installed.sh lowest; }
next_debian() { bash tests/installed.sh next_debian; }
guard() { .venv/bin/python tests/guard --tolerance 1e-11; }

# Runs a stage and notes how it went.
stage() {
    local start=$SECONDS code=0 verdict=passed
    echo "=== $1 ==="
    "$1" || code=$?
    if ((code)); then
        verdict="FAILED (exit code $code)"
        FAILED=1
    fi
    SUMMARY+=("$(printf '%-11s %5d s  %s' "$1" $((SECONDS - start)) "$verdict")")
}

main() {
    local name
    (($#)) || set -- "${STAGES[@]}"
    for name in "$@"; do
        if [[ " ${STAGES[*]} " != *" $name "* ]]; then
            echo "unknown stage $name: ${STAGES[*]}" >&2
            exit 2
        fi
    done
    bash tests/setup.sh
    for name in "$@"; do
        stage "$name"
    done
    echo "=== summary ==="
    printf '%s\n' "${SUMMARY[@]}"
    return "$FAILED"
}

main "$@"
