#!/usr/bin/env bash
# The fault table, in bounded time: `bash tests/soak.sh [--minutes 60] [--rows WORDS] ...`, as root for the rows that need
# a small disk, control groups or network namespaces. Exit code 1 where a row is missed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=/dev/null
[[ ! -e .venv/bin/activate ]] || source .venv/bin/activate
OMP_NUM_THREADS=1 exec python tests/soak.py "$@"
