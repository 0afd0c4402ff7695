"""Files whose content cannot be read as it is declared are refused: the file, what it holds, and the remedy."""

import json
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from data_tools.source.classes import Classes
from data_tools.source.columns import check_rows
from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.arrays import ArraysTable, NpyTable, NpzTable, Sparse, SparseRows, TensorsTable
from data_tools.source.formats.chunk_folder import load_chunks, take_files
from data_tools.source.formats.chunks_dgl import per_type, read_columns, read_file, stored_column
from data_tools.source.formats.dgl_files import (
    COO,
    CSR,
    GRAPHS,
    HAS_COO,
    HAS_CSR,
    TENSOR,
    UNIT,
    Reader,
    read_graphs,
)
from data_tools.source.formats.dgl_partitions import find_book, read_book, relation_of, type_rows
from data_tools.source.formats.npz_arrays import open_npy
from data_tools.source.formats.ogb_folder import link_edges, put, read_rows
from data_tools.source.formats.text_stream import TextSource, find_member
from data_tools.source.formats.values import (
    Place,
    Raw,
    map_words,
    parse_names,
    parse_times,
    single,
    text_array,
    to_dtype,
    to_numbers,
)
from data_tools.source.systems.ogb import read_ogb
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial
PLACE = Place("e.csv", "'x'", 4)


def column(*values, labels=("'x'",), scalar=True) -> Raw:
    """A piece of a column."""
    return Raw([np.array(values)], list(labels), scalar, len(values))


MANY = Classes("int8")


class GivenArrays(ArraysTable):
    """Arrays that are in no file."""

    def load(self) -> dict[str, np.ndarray]:
        return self.spec


ARRAYS = GivenArrays(TextSource(Path("g.npz")), {
    "a": np.arange(3), "b": np.arange(4), "n": np.array(5), "s_data": np.ones(1), "s_row": np.zeros(1, int),
    "s_col": np.zeros(1, int), "s_shape": np.array([1 << 40, 1]),
})  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_times(column(1, 1 << 62), "e.csv", 4, 1000),
         "e.csv: column 'x', row 6: the time 4611686018427387904 times time_scale 1000 is not within "),
        (lambda: to_dtype(np.array([2.0**53]), np.dtype(np.int64), PLACE, None), "is not an integer that fits"),
        (lambda: text_array("e.csv", [b"\xff"]), "e.csv: not UTF-8 text"),
        (lambda: single(column(1, labels=["a", "b"], scalar=False), "e.csv", 0), "is one column, not a, b"),
        (lambda: to_numbers(pa.array([b"x"]), PLACE, None, "a number"), "column 'x', row 5: 'x' is not a number; mend"),
        (lambda: to_numbers(pa.array([b"1", b"\xff"]), PLACE, None, "a number"), "'x', row 6: b'\\xff' is not UTF-8"),
        (lambda: to_numbers(pa.array([5], pa.timestamp("us", "UTC")), PLACE, None, "a time"),
         "column 'x' has type timestamp[us, tz=UTC], expected a time; in pandas .dt.as_unit('s').astype('int64')"),
        (lambda: to_numbers(pa.array([2**63, None], pa.uint64()), PLACE, -1, ""),
         "column 'x', row 5: 9223372036854775808 and the fill -1 fit into no type of numbers"),
        (lambda: to_numbers(pa.array([2**53 + 1, None]), PLACE, 0.5, ""), "row 5: 9007199254740993 and the fill 0.5"),
        (lambda: to_numbers(pa.array([["a"]]), PLACE, None, ""), "column 'x' has vectors of string, expected numbers"),
        (lambda: parse_names(Raw([pa.array([b"ok", b"\xffno"])], ["'x'"], True, 2), "e.parquet", 4),
         "e.parquet: column 'x', row 6: b'\\xffno' is not UTF-8 text; write it as text, such as by"),
        (lambda: parse_names(column(b"ok", b"\xff"), "e.npy", 4), "e.npy: column 'x', row 6: b'\\xff' is not UTF-8"),
        (lambda: map_words(pa.array([[1]]), PLACE, {"a": 0}, None), "column 'x' has type list<item: int64>, expected"),
        (lambda: to_numbers(pa.array([[1, 2], [3]]), PLACE, None, ""), "row 6: the vector has 1 entries, row 5 has 2"),
        (lambda: to_numbers(pa.array([[1, 2], [3, None]]), PLACE, None, ""), "row 6: entry 2 of the vector is missing"),
        (lambda: to_numbers(pa.array(["1", ""]), PLACE, None, "a number"), "or declare a fill for a column of values"),
        (lambda: to_numbers(pa.array([1, None]), PLACE, None, ""), "row 6: the value is missing; mend the row"),
        (lambda: map_words(pa.array(["a", "c"]), PLACE, {"a": 0, "b": 1}, None),
         "row 6: 'c' is not one of a, b; add it to values or declare a fill"),
        (lambda: MANY(Raw([pa.array([f"w{n}" for n in range(200)])], ["'x'"], True, 200), "e.csv", 0),
         "e.csv: column 'x': more classes than int8 can number"),
        (lambda: list(ARRAYS.batches({"x": "a", "y": "b"})), "differ in their number of rows: {'a': 3, 'b': 4}"),
        (lambda: list(ARRAYS.batches({"x": "n"})), "g.npz: 'n' is a single number, not a column"),
        (lambda: list(ARRAYS.batches({"x": Sparse("s_")})), "1,099,511,627,776 rows for 1 entries: shape is damaged"),
        (lambda: ARRAYS.array(3), "g.npz: 3 is not an array of it; it has a, b, n, "),
        (lambda: SparseRows("g.npz", np.ones(2), np.array([0, 9]), np.array([0, 2]), (1, 3)),
         "do not make a CSR matrix of shape (1, 3)"),
        (lambda: check_rows("a.csv", 3, [2, 2]), "a.csv: has 3 rows, expected 4; is a file cut short?"),
        (lambda: take_files("nodes.a", {"rows": 3}, {}), "nodes.a: rows without files"),
        (lambda: per_type({"node_type": ["a"]}, "node_type", "num_nodes"), "neither num_nodes_per_chunk nor"),
        (lambda: stored_column("f", "feat", 0, np.dtype("S3")), "f: its dtype |S3 is not one of numbers"),
        (lambda: relation_of("likes"), "edge_map: 'likes' is not of the form source:relation:destination"),
        (lambda: type_rows(np.array([7]), np.array([[0, 5]]), "a:to:b"), "an edge of a:to:b has an end that is not of"),
        (lambda: read_ogb("ogb-nodeprop", {}, Path()), "files.folder has no path; pass --set folder=PATH"),
        (lambda: find_member("a.zip", None, ["x", "y", "z/"]), "a.zip: holds 2 files ['x', 'y']; unpack it"),
    ],
)  # fmt: skip
def test_values(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)


def test_values_of_other_types():
    assert to_numbers(pa.array([True, False]), PLACE, None, "").tolist() == [1, 0]
    assert to_numbers(pa.array([[1, 2], [3, 4]]), PLACE, None, "").tolist() == [[1, 2], [3, 4]]
    assert map_words(pa.array([" a", "c"]), PLACE, {"a": 0}, -1).tolist() == [0, -1]
    assert to_numbers(pa.array([200, None], pa.uint8()), PLACE, -1, "").tolist() == [200, -1]
    assert to_numbers(pa.array([2**63 - 1, None], pa.uint64()), PLACE, -1, "").tolist() == [2**63 - 1, -1]
    assert to_numbers(pa.array([7, None], pa.int32()), PLACE, 0.5, "").tolist() == [7, 0.5]
    assert to_numbers(pa.array([b"7", b" 8"]), PLACE, None, "").tolist() == [7, 8]
    assert parse_names(column(b"\xc3\xa9"), "e.npy", 0).to_pylist() == ["é"]


def npy(header: bytes, version=b"\x02\x00", length=None) -> bytes:
    """The begin of an npy file."""
    return b"\x93NUMPY" + version + (len(header) if length is None else length).to_bytes(4, "little") + header


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(b"", length=1 << 30), "its header claims to have 1,073,741,824 bytes"),
        (npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (100,), }\n"), r"\(100,\) of float64 does not fit"),
        (npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n"), r"float64 of shape \(-1,\) is no array"),
        (npy(b"{'descr': (\n"), "header"),
    ],
)  # fmt: skip
def test_headers_of_arrays(tmp_path, content, message):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_npy(tmp_path / "a.npy")
    with pytest.raises(FileFormatError, match=r"a\.npy: not a readable npy file"):
        NpyTable(TextSource(tmp_path / "a.npy")).array("array")
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(FileFormatError, match=r"g\.npz: array 'x' cannot be read"):
        NpzTable(TextSource(tmp_path / "g.npz")).array("x")


def test_tables_of_another_form(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(FileFormatError, match=r"a\.csv: no arrays, but rows; say which column"):
        FileSpec(path=str(tmp_path / "a.csv")).open().array("x")
    torch.save([1, 2], tmp_path / "a.pt")
    with pytest.raises(FileFormatError, match=r"a\.pt: not a readable pt file \(it holds a list, not a dictionary of"):
        TensorsTable(TextSource(tmp_path / "a.pt")).array("x")
    with pytest.raises(FileFormatError, match=r"no array 'a\.x'; it has none at its top level"):
        GivenArrays(TextSource(Path("h.pt")), {}).array("a.x")
    torch.save(SimpleNamespace(x=torch.zeros(2)), tmp_path / "data.pt")
    said = r"^data\.pt: holds objects other than tensors, .* torch\.save\(\{name: [^\x1b]*$"  # no colors of torch's
    with pytest.raises(FileFormatError, match=said):
        TensorsTable(TextSource(tmp_path / "data.pt")).array("x")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.npz", b"")
    packed = FileSpec(path=str(tmp_path / "a.zip"), archive="a", member="x.npz")
    with pytest.raises(FileFormatError, match="npz files are not read inside of archives; unpack it"):
        packed.open()
    (tmp_path / "long.csv").write_text("x" * 200_000 + "\n1\n")
    with pytest.raises(FileFormatError, match=r"long\.csv: the first line: field larger than .*; check the delimiter"):
        list(FileSpec(path=str(tmp_path / "long.csv")).open().batches({"x": 0}))


def test_chunks(tmp_path):
    (tmp_path / "metadata.json").write_text('{"node_type": 3, "edge_type": [], "num_nodes_per_type": [1]}')
    with pytest.raises(ValueError, match=r"metadata\.json: a value is of a wrong type"):
        load_chunks(tmp_path)
    csv, no_list = ({"format": {"name": name}, "data": data} for name, data in (("csv", ["a"]), ("numpy", "a")))
    starred = {"format": {"name": "numpy"}, "data": ["a*"]}
    (tmp_path / "a").touch()
    with pytest.raises(ValueError, match=r"n\.feat: format csv is for edges; write the data as numpy or parquet"):
        read_columns("n", {"feat": csv}, [1], {}, tmp_path)
    with pytest.raises(ValueError, match=r"n\.data: expected a list of files, got 'a'"):
        read_file("n", no_list, [1], {}, tmp_path)
    with pytest.raises(ValueError, match=r"'a\*': a name of a file with \*, \? or \[ cannot be read"):
        read_file("n", starred, [1], {}, tmp_path)
    with pytest.raises(FileFormatError, match=r"n\.data: .*b: no such file"):
        read_file("n", {"format": {"name": "numpy"}, "data": ["b"]}, [1], {}, tmp_path)
    pa.parquet.write_table(pa.table({"x": [[1.5, 2.5]]}), tmp_path / "x.parquet")
    vectors = {"format": {"name": "parquet"}, "data": ["x.parquet"]}
    assert read_columns("n", {"feat": vectors}, [1], {}, tmp_path)["feat"]["dtype"] == "float64"


def test_folders_of_links(tmp_path):
    with pytest.raises(FileFormatError, match=r"none\.csv: no such file"):
        put({}, "x", tmp_path / "none.csv")
    with pytest.raises(FileFormatError, match=r"none\.csv\.gz: no such file"):
        read_rows(tmp_path / "none.csv.gz")
    for name in ("train", "valid", "test"):
        torch.save({"other": torch.arange(3)}, tmp_path / f"{name}.pt")
    with pytest.raises(FileFormatError, match=r"train\.pt: no links in it; it has other"):
        link_edges(tmp_path, {})


def words(*numbers: int) -> bytes:
    """Numbers of 64 bits."""
    return b"".join((number % (1 << 64)).to_bytes(8, "little") for number in numbers)


def tensor_of(*numbers: int) -> bytes:
    """A vector of int64 as DGL writes it."""
    head = words(TENSOR, 0) + struct.pack("<iiiBBH", 1, 0, 1, 0, 64, 1)
    return head + words(len(numbers), 8 * len(numbers), *numbers)


def test_parts_of_dgl(tmp_path):
    with pytest.raises(FileFormatError, match=r"none\.dgl: no such file"):
        Reader(tmp_path / "none.dgl")
    path = tmp_path / "part.dgl"
    cases = (
        (words(GRAPHS, 1, 2, 1), read_graphs, "version 1, kind 2; read is version 2: write it with a newer DGL"),
        (
            words(TENSOR, 0, 0) + bytes([0, 0, 0, 0, 9, 64, 1, 0]),
            lambda p: Reader(p).tensor(),
            "tensor of dtype",
        ),
        (
            words(CSR, 1, 1) + tensor_of(0, 1 << 40) + tensor_of(0) + tensor_of() + bytes(1),
            lambda p: Reader(p).matrix(HAS_CSR),
            "damaged: a matrix whose rows do not fit its 1 entries",
        ),
        (
            words(COO, 1, 1) + tensor_of(0, 1) + tensor_of(0) + tensor_of() + bytes(2),
            lambda p: Reader(p).matrix(HAS_COO),
            "damaged: a matrix whose rows do not fit its 1 entries",
        ),
        (words(UNIT, 0, 0), lambda p: Reader(p).unit(), "a relation in none of the forms COO, CSR and CSC"),
    )
    for content, read, message in cases:
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            read(path)


def test_metadata_of_parts(tmp_path):
    """What is no JSON is no metadata."""
    (tmp_path / "a.json").write_text("{")
    assert find_book(tmp_path) is None
    ranges = {"num_parts": 1, "node_map": {"a": [[0, 3]]}, "edge_map": {}, "ntypes": {"b": 0}}
    (tmp_path / "b.json").write_text(json.dumps(ranges))
    assert find_book(tmp_path) == tmp_path / "b.json"
    with pytest.raises(ValueError, match="node_map: expected the ranges of ids of b"):
        read_book(tmp_path / "b.json")
