"""Recipe for Spack 1.0 or later, to build a clone of the repository with the machine's own MPI. From its root:

spack repo add jobs/spack/spack_repo/hpcgnn
spack dev-build --source-path . py-hpcgnn@0.1.0

Where Spack knows no version of a dependency that is new enough, `spack checksum --add-to-package NAME` adds it.
"""

# ruff: noqa: F403, F405
from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHpcgnn(PythonPackage):
    """Distributed graph neural network training as an MPI batch application."""

    license("Apache-2.0")

    version("0.1.0")

    variant("cuda", default=False, description="Kernels for NVIDIA GPUs")
    variant("scipy", default=False, description="Read MATLAB files")
    variant("tensorboard", default=False, description="Write the numbers of a run for TensorBoard")

    depends_on("cxx", type="build")
    depends_on("cmake@3.24:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@0.11:", type="build")
    depends_on("py-nanobind@2.4:", type="build")

    depends_on("mpi")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-torch@2.6:", type=("build", "run"))
    depends_on("py-mpi4py@4.0:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-pymetis@2025.2.1:2025", type=("build", "run"))
    depends_on("py-jsonargparse@4.48: +signatures", type=("build", "run"))
    depends_on("py-pyyaml@6:", type=("build", "run"))
    depends_on("py-pyarrow@16:", type=("build", "run"))
    depends_on("py-safetensors@0.4.5:", type=("build", "run"))

    depends_on("cuda", when="+cuda")
    depends_on("py-torch@2.10: +cuda", when="+cuda", type=("build", "run"))
    depends_on("py-cupy@13.6:", when="+cuda", type=("build", "run"))
    depends_on("py-nvidia-ml-py@11.525:", when="+cuda", type=("build", "run"))
    depends_on("py-scipy@1.11:", when="+scipy", type=("build", "run"))
    depends_on("py-tensorboard@2.15:", when="+tensorboard", type=("build", "run"))

    def config_settings(self, spec, prefix):
        """CUDA's kernels by the variant, whatever compiler is found."""
        return {"cmake.define.HPCGNN_CUDA": "ON" if "+cuda" in spec else "OFF"}
