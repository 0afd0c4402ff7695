"""Pytest plugin (`-p sanitized`): the kernels are those in the folder HPCGNN_NATIVE, built with sanitizers."""

import os
import sys

# An editable installation finds its own modules before anything on the path.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, os.environ["HPCGNN_NATIVE"])
