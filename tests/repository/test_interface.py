"""``from hpcgnn import ...`` is the public interface: every name is there, typed, and enough for examples and docs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from conftest import REPOSITORY

import hpcgnn

pytestmark = pytest.mark.serial
INTERNAL = re.compile(r"^\s*(?:from (?:hpcgnn|data_tools)\.\S+ import|import (?:hpcgnn|data_tools)\.)", re.MULTILINE)


def test_every_name_is_there():
    for name in hpcgnn.__all__:
        assert getattr(hpcgnn, name).__doc__, name
    assert set(hpcgnn.__all__) <= set(dir(hpcgnn))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        hpcgnn.nothing  # noqa: B018


def test_type_checkers_see_the_same_names():
    """The imports for type checkers are those that are made when a name is used."""
    tree = ast.parse((REPOSITORY / "hpcgnn" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }  # fmt: skip
    made = {name: (module, hpcgnn.ORIGINALS.get(name, name)) for name, module in hpcgnn.MODULES.items()}
    assert seen == made


def test_importing_the_package_loads_nothing_else():
    program = (
        "import sys, hpcgnn; print([name for name in ('torch', 'mpi4py', 'h5py', 'numpy') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_need_no_internals(path):
    assert INTERNAL.findall(path.read_text()) == []
