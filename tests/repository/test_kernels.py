"""One name for all files of an operation below native/, in hpcgnn/native and in its test."""

from __future__ import annotations

import re

import pytest
from places import REPOSITORY

pytestmark = pytest.mark.serial

NATIVE = REPOSITORY / "native"
NO_CPU = {"attention"}  # the CPU has the whole layer, attention_layer; devices have this part of it
NO_OPERATIONS = {"__init__", "build", "dispatch", "layers", "products"}  # modules of hpcgnn/native for all of them


def names(folder: str, ending: str) -> set[str]:
    return {path.stem for path in (REPOSITORY / folder).glob(f"*{ending}")}


OPERATIONS = names("native/include/hpcgnn", ".h")


def test_every_operation_has_all_of_its_files():
    assert len(OPERATIONS) > 15, "no headers found: the test looks in the wrong place"
    assert names("native/cpu", ".cpp") == OPERATIONS - NO_CPU
    assert names("native/bind", ".cpp") - {"base", "module"} == OPERATIONS
    assert names("hpcgnn/native", ".py") - NO_OPERATIONS == OPERATIONS
    assert {f"test_{name}" for name in OPERATIONS} <= names("tests/native", ".py")


def test_cuda_kernels_belong_to_operations():
    cuda = names("native/cuda", ".cu")
    assert cuda
    assert cuda <= OPERATIONS
    assert cuda & NO_CPU == NO_CPU


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_sources_begin_with_their_own_header(name):
    """So that every header is complete."""
    for path in (NATIVE / f"cpu/{name}.cpp", NATIVE / f"bind/{name}.cpp"):
        if path.exists():
            first = re.search(r'^#include "(.*)"', path.read_text(), re.M)
            assert first is not None
            assert first.group(1) == f"hpcgnn/{name}.h", path
