"""Generated tables in text and parquet: what `data_tools.convert` stores is what pandas reads, or it is refused by file
and row."""

from __future__ import annotations

import contextlib
import csv
import io
import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from data_tools.convert import main

pytestmark = pytest.mark.serial

EXTREMES = [0, 1, -1, (1 << 31) - 1, 1 << 31, -(1 << 31) - 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63)]
INTEGERS = st.sampled_from(EXTREMES) | st.integers(-200, 200)
IDS = INTEGERS.filter(lambda number: number >= 0)
TIMES = INTEGERS.filter(lambda number: number > -(1 << 63))  # which is none
LARGEST = float(np.finfo(np.float32).max)
NUMBERS = st.sampled_from([0.0, -0.0, 0.1, 1 / 3, LARGEST, -LARGEST, LARGEST * 1.1, 1e-45, 1e-46, 5e-324, 1e300]) | (
    st.floats(allow_nan=False, allow_infinity=False)
)
# Names keep what is inside of them; spaces around them are no part of any.
NAMES = st.text(st.sampled_from("aZ0.-'\"` ,;|\t#%äßλ中🙂"), min_size=1, max_size=6).filter(
    lambda text: text == text.strip()
)
DTYPES = st.sampled_from(["int8", "int32", "int64", "float32", "float64"])


@st.composite
def tables(draw):
    """Events of named users and numbered items, with times, a label and two features."""
    count = draw(st.integers(1, 6))
    columns = {"who": NAMES, "item": IDS, "t": TIMES, "y": INTEGERS, "größe": NUMBERS, "a b": NUMBERS}
    table = {name: draw(st.lists(values, min_size=count, max_size=count)) for name, values in columns.items()}
    return pd.DataFrame(table | {"t": sorted(table["t"])})


@pytest.fixture
def folder(tmp_path):
    """A folder that an example empties before it begins."""
    return tmp_path / "example"


def convert(folder, file: dict, dtype: str, feature_dtype: str) -> str:
    """Convert events.csv or events.parquet to graph.h5; returns what was said against it."""
    edge = {
        "relation": "user.takes.item", "file": "events", "src": "who", "dst": "item", "time": "t",
        "columns": {
            "label": {"column": "y", "dtype": dtype},
            "feat": {"column": ["größe", "a b"], "dtype": feature_dtype},
        },
    }  # fmt: skip
    nodes = [{"type": "user", "ids": "string"}, {"type": "item"}]
    spec = {"files": {"events": file}, "nodes": nodes, "edges": [edge]}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, allow_unicode=True), encoding="utf-8")
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(["--spec", str(folder / "spec.yaml"), str(folder / "graph.h5")])
    assert (code == 0) == (not said.getvalue()) == (folder / "graph.h5").exists()
    return said.getvalue()


def fits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Whether a column of this type may stand for values: rounded ones only if both are fractions."""
    if dtype[0] == "f":
        with np.errstate(over="ignore"):
            return np.isfinite(values.astype(dtype))
    limits, exact = np.iinfo(dtype), values.dtype.kind == "i" or (values == np.round(values)) & (abs(values) <= 1 << 53)
    return exact & (values >= limits.min) & (values <= limits.max)


def check(folder, table: pd.DataFrame, dtype: str, feature_dtype: str, said: str, name: str) -> None:
    """Compare a graph, or the message in its place, with a table."""
    label, feature = table["y"].to_numpy(), table[["größe", "a b"]].to_numpy(np.float64)
    rows = np.flatnonzero(~fits(label, dtype) | ~fits(feature, feature_dtype).all(axis=1))
    if len(rows):
        assert name in said
        assert any(f"row {row + 1}:" in said for row in rows), said
        return
    assert not said
    with h5py.File(folder / "graph.h5") as file:
        edges = file["edges/user.takes.item"]
        users = [text.decode() for text in file["nodes/user/id"][()]]
        assert [users[row] for row in edges["src"]] == table["who"].tolist()
        assert users == sorted(set(table["who"]), key=str.encode)
        items = file["nodes/item/id"][()]
        assert items[edges["dst"][()]].tolist() == table["item"].tolist()
        assert edges["time"][()].tolist() == table["t"].tolist()
        assert edges["label"].dtype == dtype
        assert np.array_equal(edges["label"][()], label.astype(dtype))
        expected = feature.astype(feature_dtype)
        assert edges["feat"].dtype == feature_dtype
        assert edges["feat"][()].tobytes() == expected.tobytes() or feature_dtype[0] == "i"
        assert np.array_equal(edges["feat"][()], expected)


@given(
    table=tables(), delimiter=st.sampled_from([",", ";", "\t", "|"]), bom=st.booleans(), crlf=st.booleans(),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]), gz=st.booleans(),
    header=st.booleans(), dtype=DTYPES, feature_dtype=DTYPES,
)  # fmt: skip
def test_text_is_what_pandas_reads(folder, table, delimiter, bom, crlf, quoting, gz, header, dtype, feature_dtype):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    name, encoding = "events.csv" + ".gz" * gz, "utf-8-sig" if bom else "utf-8"
    written = {"sep": delimiter, "encoding": encoding, "quoting": quoting, "lineterminator": "\r\n" if crlf else "\n"}
    table.to_csv(folder / name, index=False, header=header, **written)
    read = pd.read_csv(
        folder / name, sep=delimiter, encoding=encoding, keep_default_na=False,
        dtype=dict(zip(table, [str, "int64", "int64", "int64", str, str], strict=True)), header=0 if header else None,
        names=None if header else list(table),
    )  # fmt: skip
    pd.testing.assert_frame_equal(read.astype(table.dtypes), table)
    file = {"path": name, "delimiter": delimiter, "comment": "", "quote": '"'}
    file |= {} if header else {"header": "none", "columns": list(table)}
    said = convert(folder, file, dtype, feature_dtype)
    check(folder, read, dtype, feature_dtype, said, name)


@given(
    table=tables(), dtype=DTYPES, feature_dtype=DTYPES, narrow=st.booleans(),
    missing=st.none() | st.tuples(st.sampled_from(["who", "item", "t", "y", "a b"]), st.integers(0, 5)),
)  # fmt: skip
def test_parquet_is_what_pandas_reads(folder, table, dtype, feature_dtype, narrow, missing):
    """Of whatever types its columns are; a value that is missing is refused."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    table = table.astype({"who": "category" if narrow else str, "größe": "float64"})
    if narrow and table["y"].between(-128, 127).all():
        table["y"] = table["y"].astype("int8")
    if missing:
        column, row = missing[0], missing[1] % len(table)
        nullable = {"item": "Int64", "t": "Int64", "y": "Int64"}
        table = table.astype({column: nullable[column]} if column in nullable else {})
        table.loc[row, column] = None
    table.to_parquet(folder / "events.parquet")
    said = convert(folder, {"path": "events.parquet"}, dtype, feature_dtype)
    read = pd.read_parquet(folder / "events.parquet")
    pd.testing.assert_frame_equal(read, table)
    if missing:
        assert "events.parquet: column" in said
        assert "row " in said
        return
    check(folder, read.astype({"who": str, "y": "int64"}), dtype, feature_dtype, said, "events.parquet")


@given(
    names=st.lists(NAMES, min_size=1, max_size=6, unique=True), order=st.randoms(use_true_random=False), data=st.data(),
    numbers=st.lists(NUMBERS.filter(lambda number: abs(number) <= LARGEST), min_size=6, max_size=6),
)  # fmt: skip
def test_the_order_of_a_table_of_nodes_does_not_count(folder, names, order, data, numbers):
    """Nodes are numbered by their ids, so the graph is the same, and with it all that is learned from it."""
    edges = data.draw(st.lists(st.tuples(*[st.sampled_from(names)] * 2), min_size=1, max_size=6))
    rows = [(name, place, numbers[place]) for place, name in enumerate(names)]
    contents = []
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        pd.DataFrame(rows, columns=["name", "y", "x"]).to_csv(folder / "nodes.csv", index=False)
        pd.DataFrame(edges, columns=["u", "v"]).to_csv(folder / "edges.csv", index=False)
        columns = {"label": "y", "feat": ["x"]}
        node = {"type": "n", "ids": "string", "file": "nodes", "id": "name", "columns": columns}
        edge = {"relation": "n.to.n", "file": "edges", "src": "u", "dst": "v"}
        spec = {
            "files": {name: {"path": f"{name}.csv"} for name in ("nodes", "edges")},
            "nodes": [node],
            "edges": [edge],
        }
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
        assert main(["--spec", str(folder / "spec.yaml"), str(folder / "graph.h5")]) == 0
        with h5py.File(folder / "graph.h5") as file:
            groups = {"n": file["nodes/n"], "e": file["edges/n.to.n"]}
            contents.append({(at, key): group[key][()].tobytes() for at, group in groups.items() for key in group})
            ids = [text.decode() for text in file["nodes/n/id"][()]]
            assert ids == sorted(names, key=str.encode)
            assert [names[at] for at in file["nodes/n/label"][()]] == ids
        order.shuffle(rows)
    assert contents[0] == contents[1]
