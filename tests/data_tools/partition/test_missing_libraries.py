"""What partitioning needs and does not find is told with the remedy; so is what would fit into the memory."""

import _ctypes
import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from random_graphs import random_static

from data_tools.cli import run_command
from data_tools.graph.source import open_source
from data_tools.partition.memory import count, remedy
from data_tools.partition.methods import parmetis
from data_tools.partition.methods.given_parts import code_hash
from data_tools.partition.methods.streaming import stream
from data_tools.partition.options import StaticOptions
from data_tools.team import Team

pytestmark = pytest.mark.serial


def test_libraries_of_parmetis(tmp_path, monkeypatch):
    (tmp_path / "libx.so").write_text("no library")
    assert parmetis.find_library(str(tmp_path / "libx.so")) == str(tmp_path / "libx.so")
    with pytest.raises(ValueError, match=r"libx\.so: cannot be loaded: .*; install libptscotch-dev"):
        parmetis.load_library(str(tmp_path / "libx.so"))
    with pytest.raises(ValueError, match="has no function ParMETIS_V3_PartKway; install libptscotch-dev"):
        parmetis.load_library(_ctypes.__file__)
    monkeypatch.setattr(parmetis, "PLACES", (str(tmp_path / "int{bits}"),))
    with pytest.raises(ValueError, match="method parmetis: no ParMETIS library is found; install libptscotch-dev"):
        parmetis.find_library()


@pytest.mark.parametrize(("written", "dtype"), [(40, np.int32), (80, np.int64)])
def test_integers_of_parmetis(written, dtype):
    """As many bytes as it writes options."""

    def fill(pointer):
        ctypes.memset(pointer, 0, 4 * written)

    assert parmetis.metis_index(SimpleNamespace(METIS_SetDefaultOptions=fill)) == dtype


def test_methods_without_a_file_have_no_hash():
    assert code_hash("magic") is None
    assert code_hash("no_such_module.Rounds") is None


def test_what_fits_is_told(tmp_path):
    source = open_source(random_static(tmp_path / "g.h5", 1))
    options = StaticOptions(parts=4, method="metis")
    with source.file:
        counts = count(Team(), source, options)
        alone = "choose --method ldg, which reads the edges from disk, or raise --memory"
        assert remedy(counts, options, 1 << 40, shared=False) == alone
        assert "keeps the edges on disk, start more ranks, on more machines" in remedy(counts, options, 1 << 40, True)
        assert remedy(counts, options, 0, shared=False) == "raise --memory"


def test_nodes_without_weight_are_in_the_first_part():
    graph = SimpleNamespace(slabs=SimpleNamespace(team=Team()))
    assert stream(graph, np.zeros((3, 2), np.int64), 4, "ldg", 1).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(ValueError("bad"), 2, "error: bad\n"), (OSError("full"), 1, "error: full\n"),
     (MemoryError("piece"), 1, "error: out of memory (piece); --mem"), (KeyboardInterrupt(), 130, "interrupted")],
)  # fmt: skip
def test_errors_of_commands_have_exit_codes(capsys, error, code, words):
    def main():
        raise error

    assert run_command(main) == code
    assert capsys.readouterr().err.startswith(words)
