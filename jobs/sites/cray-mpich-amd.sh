# shellcheck shell=bash
# HPE Cray EX with AMD GPUs, such as MI250X: as cray-mpich, with ROCm. mpi4py has to be built while these modules are
# loaded, so that it is linked with Cray MPICH's library for AMD GPUs.
set +u # module systems read variables that nobody has set
module load rocm craype-accel-amd-gfx90a
set -u
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/cray-mpich.sh"
