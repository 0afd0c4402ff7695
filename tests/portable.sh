#!/usr/bin/env bash
# The kernels on processors that this machine is not: `bash tests/portable.sh [STAGE...]`
#
#   aarch64  all CPU kernels compile, without a warning, with a cross compiler
#   avx2     the self-check passes on an emulated processor without AVX-512, with the build for it
#
# Needs .venv (tests/setup.sh), and the Debian packages g++-aarch64-linux-gnu and qemu-user, which root gets by apt-get.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

need() {
    command -v "$1" >/dev/null && return
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "portable: $1 is missing: install the Debian package $2" >&2
        return 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}

aarch64() {
    local folder=build/aarch64 log=build/aarch64.log include
    need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu || return
    include=$(python -c "import sysconfig; print(sysconfig.get_path('include'))")
    mkdir -p build
    if ! cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
        -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DHPCGNN_CUDA=OFF \
        -DCMAKE_CXX_FLAGS=-Werror -DPython_EXECUTABLE="$PWD/.venv/bin/python" -DPython_INCLUDE_DIR="$include" \
        >"$log" 2>&1 || ! cmake --build "$folder" >>"$log" 2>&1; then
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

main() {
    local failed=0
    # shellcheck source=/dev/null
    source .venv/bin/activate
    (($#)) || set -- aarch64 avx2
    for name in "$@"; do
        case $name in
            aarch64 | avx2)
                echo "=== $name ==="
                "$name" || failed=1
                ;;
            *)
                echo "unknown stage $name: aarch64 avx2" >&2
                exit 2
                ;;
        esac
    done
    return "$failed"
}

main "$@"
