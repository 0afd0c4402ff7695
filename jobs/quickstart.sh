#!/usr/bin/env bash
# From a fresh clone to a trained model: sets up .venv, then trains TGN on a built-in synthetic graph with two ranks.
# Arguments go to hpcgnn.train, for example `--train.epochs 1`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash jobs/setup.sh
# shellcheck source=/dev/null
source .venv/bin/activate

flags=(-np 2)
if [[ $(mpirun --version) == *"Open MPI"* ]]; then
    flags+=(--oversubscribe)
    [[ $(id -u) != 0 ]] || flags+=(--allow-run-as-root)
fi
exec bash jobs/clean_start.sh mpirun "${flags[@]}" python -m hpcgnn.train "$@"
