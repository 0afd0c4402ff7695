#!/usr/bin/env bash
# The kernels on processors and GPUs that this machine does not have: `bash tests/portable.sh [STAGE...]`
#
#   aarch64  all CPU kernels compile, without a warning, with a cross compiler
#   avx2     the self-check passes on an emulated processor without AVX-512, with the build for it
#   amd      only where it is named: all kernels of native/cuda compile, without a warning, for AMD GPUs: gfx90a, and
#            gfx942 where hipcc knows it
#
# Needs .venv (tests/setup.sh), and the Debian packages g++-aarch64-linux-gnu and qemu-user, for amd hipcc and
# librocprim-dev; root gets them by apt-get.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

need() {
    command -v "$1" >/dev/null && return
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "portable: $1 is missing: install from Debian: ${*:2}" >&2
        return 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${@:2}" >/dev/null
}

aarch64() {
    local folder=build/aarch64 log=build/aarch64.log headers=build/headers include own
    need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu || return
    include=$(python -c "import sysconfig; print(sysconfig.get_path('include'))")
    # Debian's Python.h looks for Python's settings in a folder with the processor's name. Those of this processor, whose
    # types are as wide, do for compiling.
    own=/usr/include/$(python -c "import sysconfig; print(sysconfig.get_config_var('MULTIARCH'))")/${include##*/}
    mkdir -p "$headers/aarch64-linux-gnu"
    ln -sfn "$own" "$headers/aarch64-linux-gnu/${include##*/}"
    if ! cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
        -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DHPCGNN_CUDA=OFF \
        -DCMAKE_CXX_FLAGS="-Werror -isystem $PWD/$headers" -DPython_EXECUTABLE="$PWD/.venv/bin/python" \
        -DPython_INCLUDE_DIR="$include" >"$log" 2>&1 || ! cmake --build "$folder" >>"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
    aarch64-linux-gnu-readelf -h "$folder"/any.*.so | grep "Machine: *AArch64"
}

avx2() {
    local found
    need qemu-x86_64 qemu-user || return
    found=$(qemu-x86_64 -cpu Haswell .venv/bin/python -m hpcgnn.info 2>&1) || { echo "$found" >&2 && return 1; }
    grep "simd avx2" <<<"$found" && grep "self-check: kernels and exchange agree" <<<"$found"
}

amd() {
    local folder=build/amd log=build/amd.log architectures=gfx90a found
    need hipcc hipcc librocprim-dev || return
    mkdir -p build
    HIP_PLATFORM=amd hipcc -x hip --offload-arch=gfx942 -c /dev/null -o /dev/null 2>/dev/null && architectures+=';gfx942'
    if ! cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHPCGNN_HIP=ON -DHPCGNN_HIP_FLAGS=-Werror \
        -DHPCGNN_HIP_ARCHITECTURES="$architectures" -DPython_EXECUTABLE="$PWD/.venv/bin/python" >"$log" 2>&1 ||
        ! cmake --build "$folder" --target cuda >>"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
    found=$(grep -aoE 'amdgcn-amd-amdhsa--gfx[0-9a-z]+' "$folder"/cuda.*.so | sort -u)
    echo "$found" && [[ $(wc -l <<<"$found") == $(wc -w <<<"${architectures//;/ }") ]]
}

main() {
    local failed=0
    # shellcheck source=/dev/null
    source .venv/bin/activate
    (($#)) || set -- aarch64 avx2
    for name in "$@"; do
        case $name in
            aarch64 | avx2 | amd)
                echo "=== $name ==="
                "$name" || failed=1
                ;;
            *)
                echo "unknown stage $name: aarch64 avx2 amd" >&2
                exit 2
                ;;
        esac
    done
    return "$failed"
}

main "$@"
