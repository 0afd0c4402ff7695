#!/usr/bin/env bash
# Runs the tests of native code under sanitizers: `bash tests/sanitize.sh [address] [thread]` (default: both).
#
#   address  AddressSanitizer and UndefinedBehaviorSanitizer: kernels, samplers, partitioning
#   thread   ThreadSanitizer: prefetching, and kernels called from several threads
#
# Needs .venv (tests/setup.sh) and a g++ with the sanitizers' libraries. The modules are built in build/sanitize-*.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Minutes without any output after which a pytest is ended: longer than the limit of any single test.
readonly IDLE_MINUTES=${IDLE_MINUTES:-35}
readonly ADDRESS_TESTS=(
    tests/native/test_{adam,attention,attention_layer,encode,grouped,gru,link_decoder,memory,neighbor_batch,neighbors}.py
    tests/native/test_{owner,parts,random,recurrent,relabel,rows,sage,sample,segment,workspace}.py
    tests/static/test_excluded_draws.py
    tests/static/test_graph_sampling.py tests/data_tools/partition/test_streaming.py tests/loop/test_prefetch.py
)
readonly THREAD_TESTS=(tests/loop/test_prefetch.py tests/loop/test_in_flight.py tests/static/test_excluded_draws.py)

# The build for a sanitizer has no emulated CUDA.
readonly SKIPS=("--allow-skip=built without HPCGNN_EMULATE_CUDA")

# Runs a command for as long as it says something now and then.
patiently() {
    python tests/idle_timeout.py --minutes "$IDLE_MINUTES" -- "$@"
}

# Builds the modules with -fsanitize=$2 in build/sanitize-$1; prints the folder that their package lies in.
build() {
    local folder=build/sanitize-$1 log=build/sanitize-$1.log
    mkdir -p build
    if ! cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHPCGNN_CUDA=OFF -DHPCGNN_NATIVE_ARCH=ON \
        -DHPCGNN_SANITIZE="$2" -DPython_EXECUTABLE="$PWD/.venv/bin/python" >"$log" 2>&1 ||
        ! cmake --build "$folder" >>"$log" 2>&1 ||
        ! cmake --install "$folder" --prefix "$folder/package" >>"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
    echo "$PWD/$folder/package"
}

# The runtime comes first into the process, as Python is built without it; with it the C++ library, whose exceptions
# it watches.
preload() {
    echo "$(g++ -print-file-name="lib$1.so") $(g++ -print-file-name=libstdc++.so)"
}

# What Python keeps to its end is no leak of ours. --capture=sys: what a sanitizer says as it ends the process is seen.
address() {
    HPCGNN_NATIVE=$(build address address,undefined) || return 1
    export HPCGNN_NATIVE
    patiently env UCX_MEM_EVENTS=n LD_PRELOAD="$(preload asan)" ASAN_OPTIONS=detect_leaks=0 \
        UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=tests \
        python -m pytest -p sanitized -p no:cacheprovider -q --capture=sys "${SKIPS[@]}" "${ADDRESS_TESTS[@]}"
}

# Of all reports only those count that name the module: Python, torch and OpenMP are built without the sanitizer.
thread() {
    local reports status=0
    HPCGNN_NATIVE=$(build thread thread) || return 1
    export HPCGNN_NATIVE
    reports=$(mktemp -d)
    # UCX's hooks into memory functions and the sanitizer's exclude each other.
    patiently env UCX_MEM_EVENTS=n LD_PRELOAD="$(preload tsan)" PYTHONPATH=tests OMP_NUM_THREADS=1 \
        TSAN_OPTIONS="exitcode=0 log_path=$reports/report suppressions=$PWD/tests/tsan.supp" \
        setarch -R python -m pytest -p sanitized -p no:cacheprovider -q "${SKIPS[@]}" "${THREAD_TESTS[@]}" || status=$?
    if grep -rl 'hpcgnn_native' "$reports"; then
        cat "$reports"/* >&2
        status=1
    fi
    rm -rf "$reports"
    return "$status"
}

main() {
    local failed=0 kind
    # shellcheck source=/dev/null
    source .venv/bin/activate
    (($#)) || set -- address thread
    for kind in "$@"; do
        case $kind in
            address | thread)
                echo "=== $kind ==="
                "$kind" || failed=1
                ;;
            *)
                echo "unknown sanitizer $kind: address thread" >&2
                exit 2
                ;;
        esac
    done
    return "$failed"
}

main "$@"
