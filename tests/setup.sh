#!/usr/bin/env bash
# Makes .venv with everything that training, tests and linting need, and builds the package into it. Quick when up to
# date. See jobs/setup.sh.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../jobs/setup.sh" --tests
