"""Packed and encoded text, Feather, Arrow IPC and folders of Parquet files, as other programs write them."""

import bz2
import lzma
import struct

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pytest
import yaml
from convert_sources import refused

from data_tools.convert import main
from data_tools.inspect import main as inspect

pytestmark = pytest.mark.serial

EVENTS = "src,dst,time\nann,bob,5\nbob,zoë,6\nann,zoë,9\n"
NAMES = [b"ann", b"bob", "zoë".encode()]
SPEC = {
    "files": {"events": {"path": "events.csv"}},
    "nodes": [{"type": "node", "ids": "string"}],
    "edges": [{"relation": "node.to.node", "file": "events", "src": "src", "dst": "dst", "time": "time"}],
}


def frame() -> pd.DataFrame:
    return pd.DataFrame({"src": ["ann", "bob", "ann"], "dst": ["bob", "zoë", "zoë"], "time": [5, 6, 9]})


def pack_zstd(text: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text)
    return sink.getvalue().to_pybytes()


PACK = {".bz2": bz2.compress, ".xz": lzma.compress, ".zst": pack_zstd}


def assert_the_events(path):
    with h5py.File(path) as file:
        assert file["nodes/node/id"][:].tolist() == NAMES
        edges = file["edges/node.to.node"]
        assert [edges[name][:].tolist() for name in ("src", "dst", "time")] == [[0, 1, 0], [1, 2, 2], [5, 6, 9]]


def convert(source, output):
    return main(["--preset", "csv-temporal", "--ids", "string", "--set", f"events={source}", str(output)])


def write_spec(folder, **layout):
    events = {"path": "events.csv", **layout}
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC | {"files": {"events": events}}))
    return folder / "spec.yaml"


@pytest.mark.parametrize("suffix", PACK)
def test_packed_text(tmp_path, capsys, suffix):
    path = tmp_path / f"events.csv{suffix}"
    packed = PACK[suffix](EVENTS.encode())
    path.write_bytes(packed + PACK[suffix](b""))  # of two pieces, as programs that append write it
    assert convert(path, tmp_path / "g.h5") == 0
    assert_the_events(tmp_path / "g.h5")
    for damaged in (packed[:-5], b"no packed text at all"):
        path.write_bytes(damaged)
        message = refused(tmp_path, capsys, "--preset", "csv-temporal", "--ids", "string", "--set", f"events={path}")
        assert "damaged or truncated" in message
        assert f"events.csv{suffix}" in message


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_declared_encodings(tmp_path, encoding):
    (tmp_path / "events.csv").write_bytes(EVENTS.replace("\n", "\r\n").encode(encoding))
    assert main(["--spec", str(write_spec(tmp_path, encoding=encoding)), str(tmp_path / "g.h5")]) == 0
    assert_the_events(tmp_path / "g.h5")


def test_packed_text_of_another_encoding(tmp_path):
    (tmp_path / "events.csv.bz2").write_bytes(bz2.compress(EVENTS.encode("latin-1")))
    spec = write_spec(tmp_path, path="events.csv.bz2", encoding="latin-1")
    assert main(["--spec", str(spec), str(tmp_path / "g.h5")]) == 0
    assert_the_events(tmp_path / "g.h5")


@pytest.mark.parametrize(
    ("layout", "text", "message"),
    [
        ({}, EVENTS.encode("latin-1"), "not UTF-8 text"),
        ({}, EVENTS.encode("latin-1"), "encoding: latin-1"),
        ({"encoding": "ascii"}, EVENTS.encode(), "not ascii text"),
        ({"encoding": "utf-16"}, EVENTS.encode("utf-16")[:-1], "events.csv: not utf-16 text"),
        ({"encoding": "latin-one"}, b"", "encoding: unknown encoding: latin-one; such as latin-1, cp1252 or utf-16"),
        ({"encoding": "latin-1", "format": "parquet"}, b"", "parquet files are no text; leave out encoding: latin-1"),
    ],
)
def test_refused_encodings(tmp_path, capsys, layout, text, message):
    (tmp_path / "events.csv").write_bytes(text)
    assert message in refused(tmp_path, capsys, "--spec", str(write_spec(tmp_path, **layout)))


@pytest.mark.parametrize("name", ["events.feather", "events.arrow"])
def test_feather_and_arrow(tmp_path, capsys, name):
    table = frame().assign(price=[1.5, 2.0, 3.0])
    if name == "events.feather":
        table.to_feather(tmp_path / name, compression="lz4")
    else:
        arrow = pa.Table.from_pandas(table, preserve_index=False)
        with pa.ipc.new_file(tmp_path / name, arrow.schema) as writer:
            writer.write_table(arrow, max_chunksize=2)  # two batches of rows
    assert convert(tmp_path / name, tmp_path / "g.h5") == 0
    assert_the_events(tmp_path / "g.h5")
    assert f"{name}: columns that are not read: price" in capsys.readouterr().out
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9])
    message = refused(
        tmp_path, capsys, "--preset", "csv-temporal", "--ids", "string", "--set", f"events={tmp_path / name}"
    )
    assert f"{name}: not a readable Arrow file" in message


def test_offsets_of_text_that_lead_nowhere(tmp_path, capsys):
    """Arrow itself would read there, which can end the process."""
    path = tmp_path / "events.feather"
    table = pa.table({"src": ["ann", "bob", "ann"], "dst": ["bobby", "zoë", "zoë"], "time": [5, 6, 9]})
    pa.feather.write_feather(table, path, compression="uncompressed")
    content, offsets = path.read_bytes(), struct.pack("<4i", 0, 3, 6, 9)
    assert content.count(offsets) == 1  # of src
    path.write_bytes(content.replace(offsets, struct.pack("<4i", 0, 3, 1 << 30, 9)))
    message = refused(tmp_path, capsys, "--preset", "csv-temporal", "--ids", "string", "--set", f"events={path}")
    assert "events.feather: not a readable Arrow file" in message


def write_years(folder):
    """Events of three years, the files as pyarrow, pandas, Spark and DuckDB lay them out."""
    table = frame().assign(year=[2023, 2024, 2024], place=["here", "here", "a b"])
    layout = pa.dataset.partitioning(pa.schema([("year", pa.int32()), ("place", pa.string())]), flavor="hive")
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    pa.dataset.write_dataset(arrow, folder, format="parquet", partitioning=layout)
    (folder / "_SUCCESS").write_text("")


def test_a_folder_of_parquet_files(tmp_path, capsys):
    write_years(tmp_path / "events")
    spec = SPEC["edges"][0] | {
        "columns": {"feat": {"column": "year", "dtype": "float32"}, "where": {"column": "place", "classes": True}}
    }
    spec = SPEC | {"files": {"events": {"path": "events"}}, "edges": [spec | {"sort": True}]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert main(["--spec", str(tmp_path / "spec.yaml"), "--memory", "1GiB", str(tmp_path / "g.h5")]) == 0
    assert_the_events(tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["edges/node.to.node/feat"][:].tolist() == [[2023], [2024], [2024]]
        assert file["edges/node.to.node/where"][:].tolist() == [1, 1, 0]
        assert '"chunks": 3' in file.attrs["sources"]
    assert inspect([str(tmp_path / "g.h5")]) == 0
    assert "(0 a b, 1 here)" in capsys.readouterr().out


def test_keys_of_folders_that_nothing_is_made_of_are_named(tmp_path, capsys):
    write_years(tmp_path / "events")
    assert main(
        ["--preset", "csv-temporal", "--ids", "string", "--sort", "--set", f"events={tmp_path}/events",
         str(tmp_path / "g.h5")]
    ) == 0  # fmt: skip
    assert_the_events(tmp_path / "g.h5")
    assert "columns that are not read: year, place" in capsys.readouterr().out


def test_refused_folders(tmp_path, capsys):
    folder = tmp_path / "events"
    write_years(folder)
    options = ("--preset", "csv-temporal", "--ids", "string", "--set", f"events={folder}")
    assert "the time decreases from 9 to 6; pass --sort" in refused(tmp_path, capsys, *options)
    other = folder / "year=2025" / "place=here" / "part-0.parquet"
    other.parent.mkdir(parents=True)
    frame().drop(columns="time").to_parquet(other)
    message = refused(tmp_path, capsys, *options)
    assert "has the columns src, dst, but part-0.parquet has src, dst, time" in message
    frame().assign(year=1).to_parquet(other)
    for path in folder.rglob("year=202[34]/*/*.parquet"):
        path.unlink()
    assert "year is a column and a key of the folder" in refused(tmp_path, capsys, *options)
    other.unlink()
    assert "a folder without Parquet files; list files of other formats by chunks" in refused(
        tmp_path, capsys, *options
    )


def test_rows_of_a_folder_are_in_order_of_numbers(tmp_path):
    folder = tmp_path / "days"
    folder.mkdir()
    for day in (1, 2, 10):
        table = pd.DataFrame({"src": [0], "dst": [1], "time": np.array([day])})
        table.to_parquet(folder / f"day-{day}.parquet")
    assert main(["--preset", "csv-temporal", "--set", f"events={folder}", str(tmp_path / "g.h5")]) == 0
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["edges/node.to.node/time"][:].tolist() == [1, 2, 10]
