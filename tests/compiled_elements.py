"""Element functions of the CUDA build, compiled for the host."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def compile_elements(source: str, folder: Path) -> ctypes.CDLL:
    """The functions of a source file beside this one. Skips the test where there is no compiler."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = folder / "elements.so"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-shared", "-fPIC"]
    headers = f"-I{TESTS.parent / 'native' / 'include'}"
    subprocess.run([compiler, *flags, headers, str(TESTS / source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
