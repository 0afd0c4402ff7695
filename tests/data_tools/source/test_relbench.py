"""Databases of RelBench become heterogeneous graphs. The files are written as Table.save of relbench/base/table.py
(github.com/snap-stanford/relbench, dd8d6ef) writes them; expected values are computed by pandas."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from convert_sources import assignments, refused

from data_tools.convert import main
from data_tools.source.systems import relbench

pytestmark = pytest.mark.serial


def save(folder: Path, name: str, frame: pd.DataFrame, key=None, foreign=None, time=None) -> None:
    """As Table.save."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {"fkey_col_to_pkey_table": foreign or {}, "pkey_col": key, "time_col": time}
    packed = {name.encode(): json.dumps(value).encode() for name, value in metadata.items()}
    folder.mkdir(exist_ok=True, parents=True)
    pq.write_table(
        table.replace_schema_metadata({**(table.schema.metadata or {}), **packed}), folder / f"{name}.parquet"
    )


def drivers(rng, count: int) -> pd.DataFrame:
    return pd.DataFrame({
        "driverId": np.arange(count), "height": rng.random(count), "won": rng.integers(0, 2, count).astype(bool),
        "surname": [f"name {row}" for row in range(count)], "dob": pd.date_range("1990-01-01", periods=count, freq="D"),
    })  # fmt: skip


def results(rng, count: int, num_drivers: int, num_races: int) -> pd.DataFrame:
    """Two foreign keys, one of floats that are missing in some rows; no primary key; a time and a number miss some."""
    driver = rng.integers(0, num_drivers, count).astype(float)
    driver[::5] = np.nan
    when = pd.Series(pd.date_range("2020-01-01", periods=count, freq="h"))
    when[3] = pd.NaT
    points = rng.integers(0, 20, count).astype(float)
    points[1::4] = np.nan
    return pd.DataFrame({"driverId": driver, "race": rng.integers(0, num_races, count), "points": points, "date": when})


def converted(folder: Path, **settings) -> h5py.File:
    output = folder.with_suffix(".h5")
    assert main(["--preset", "relbench", *assignments({"folder": folder, **settings}), "--overwrite", str(output)]) == 0
    return h5py.File(output)


def columns(file: h5py.File, relation: str) -> list[tuple[int, int]]:
    return sorted(zip(*(file[f"edges/{relation}/{end}"][:].tolist() for end in ("src", "dst")), strict=True))


@pytest.mark.parametrize("batch", [1 << 18, 7])
@pytest.mark.parametrize("within", ["", "db"])
def test_tables_become_types(tmp_path, capsys, monkeypatch, batch, within):
    monkeypatch.setattr(relbench, "BATCH_ROWS", batch)
    rng = np.random.default_rng(0)
    people, rows = drivers(rng, 6), results(rng, 40, 6, 4)
    folder = tmp_path / "f1" / within
    save(folder, "drivers", people, "driverId")
    save(folder, "races", pd.DataFrame({"raceId": np.arange(4)}), "raceId")
    save(folder, "results", rows, None, {"driverId": "drivers", "race": "races"}, "date")
    with converted(tmp_path / "f1", fill="-1") as file:
        assert {name: int(group.attrs["num_nodes"]) for name, group in file["nodes"].items()} == {
            "drivers": 6, "races": 4, "results": 40,
        }  # fmt: skip
        assert np.array_equal(file["nodes/drivers/feat"][:], people[["height", "won"]].to_numpy(np.float32))
        assert file["nodes/drivers/id"][:].tolist() == list(range(6))
        assert np.array_equal(file["nodes/results/feat"][:], rows[["points"]].fillna(-1).to_numpy(np.float32))
        seconds = [-(2**63) if pd.isna(time) else int(time.timestamp()) for time in rows["date"]]
        assert file["nodes/results/date"][:].tolist() == seconds
        assert file["nodes/results/date"].attrs["zone"] == "UTC"
        kept = rows.dropna(subset="driverId")
        expected = sorted(zip(kept.index, kept["driverId"].astype(int), strict=True))
        assert columns(file, "results.f2p_driverId.drivers") == expected
        assert columns(file, "drivers.rev_f2p_driverId.results") == sorted((b, a) for a, b in expected)
        assert columns(file, "results.f2p_race.races") == sorted(zip(rows.index, rows["race"], strict=True))
    said = capsys.readouterr().out
    for line in (
        "drivers: feat: height, won", "drivers: 2 columns that are not used: surname, dob", "races: feat: none",
        "results: column driverId: 8 missing values: no edge",
        "results: column points: 10 missing values: stored as -1",
        "results: column date: 1 missing value: stored as -9223372036854775808",
    ):  # fmt: skip
        assert line in said
    assert "that are not read" not in said


def test_keys_of_text(tmp_path, capsys):
    """Keys that are no row numbers, in no order, one foreign key without a row."""
    save(folder := tmp_path / "shop", "users", pd.DataFrame({"name": ["bob", "ann", "cid"], "age": [3, 1, 2]}), "name")
    orders = pd.DataFrame({"order": [90, 70, 80], "user": ["cid", "eve", None], "by": ["ann", "ann", "bob"]})
    save(folder, "orders", orders, "order", {"user": "users", "by": "users"})
    with converted(folder) as file:
        names = file["nodes/users/id"][:].astype(str)
        assert sorted(names) == ["ann", "bob", "cid"]
        ages = dict(zip(names.tolist(), file["nodes/users/feat"][:, 0].tolist(), strict=True))
        assert ages == {"bob": 3, "ann": 1, "cid": 2}
        numbers = file["nodes/orders/id"][:]

        def named(relation):
            return sorted((int(numbers[src]), str(names[dst])) for src, dst in columns(file, relation))

        assert named("orders.f2p_user.users") == [(90, "cid")]
        assert named("orders.f2p_by.users") == [(70, "ann"), (80, "bob"), (90, "ann")]
    said = capsys.readouterr().out
    assert "orders: column user: 1 missing value: no edge" in said
    assert "orders.f2p_user.users: 1 dangling edge dropped" in said


def test_a_table_without_rows(tmp_path, capsys):
    save(folder := tmp_path / "db", "a", pd.DataFrame({"x": [1, 2]}), "x")
    save(folder, "b", pd.DataFrame({"x": [2]}), None, {"x": "a"})
    save(folder, "c", pd.DataFrame({"x": np.empty(0, np.int64)}), None, {"x": "a"})
    with converted(folder) as file:
        assert sorted(file["edges"]) == ["a.rev_f2p_x.b", "b.f2p_x.a"]
        assert file["nodes/c"].attrs["num_nodes"] == 0
    assert "c: no rows, so its foreign keys make no relations" in capsys.readouterr().out


def test_a_foreign_key_that_is_missing_everywhere(tmp_path, capsys):
    """Its column is of nulls, or of NaN, and metadata may have null in place of no keys."""
    save(folder := tmp_path / "db", "a", pd.DataFrame({"x": ["u", "v"], "y": [1, 2]}), "x")
    frame = pd.DataFrame({"none": [None, None], "nan": [np.nan, np.nan], "x": ["v", None]})
    save(folder, "b", frame, None, dict.fromkeys(frame, "a"))
    metadata = {name.encode(): b"null" for name in relbench.KEYS}
    pq.write_table(pa.table({"y": [3]}).replace_schema_metadata(metadata), folder / "c.parquet")
    with converted(folder) as file:
        assert sorted(file["edges"]) == ["a.rev_f2p_x.b", "b.f2p_x.a"]
        assert columns(file, "b.f2p_x.a") == [(0, file["nodes/a/id"][:].tolist().index(b"v"))]
        assert file["nodes/c/feat"][:].tolist() == [[3]]
    said = capsys.readouterr().out
    for name in ("none", "nan"):
        assert f"b: column {name}: 2 missing values: no edge, so it makes no relation" in said
    assert "b: column x: 1 missing value: no edge\n" in said


@pytest.mark.parametrize("text", [False, True])
def test_missing_primary_keys(tmp_path, capsys, text):
    save(folder := tmp_path / "db", "a", pd.DataFrame({"x": [1, 2]}), "x")
    key = pd.array(["p", None, "r"], "string") if text else pd.array([7, None, 9], "Int64")
    save(folder, "b", pd.DataFrame({"k": key, "x": [1, 2, 2], "v": [3, 4, 5]}), "k", {"x": "a"})
    arguments = ["--preset", "relbench", "--set", f"folder={folder}"]
    message = refused(tmp_path, capsys, *arguments)
    assert "b.parquet: column 'k', row 2: the id is missing" in message
    assert "--set missing_ids=drop with csv presets and relbench" in message
    assert "--set missing_ids" in refused(tmp_path, capsys, *arguments, "--set", "missing_ids=leave")
    with converted(folder, missing_ids="drop") as file:
        assert file["nodes/b/feat"][:].tolist() == [[3], [5]]
        assert columns(file, "b.f2p_x.a") == [(0, 0), (1, 1)]
    assert "b: 1 row without an id dropped" in capsys.readouterr().out


def one(frame: dict, **metadata) -> dict:
    return {"frame": pd.DataFrame(frame), **metadata}


KEYED = one({"x": [1]}, key="x")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "no parquet files, which Database.save of RelBench writes"),
        ({"a": one({"x": [1]}, foreign={"x": "b"})}, "column 'x' names rows of table 'b', which is not in the folder"),
        ({"a": one({"x": [1]}, foreign={"x": "b"}), "b": one({"y": [1]})}, "of table 'b', which has no primary key"),
        ({"a": one({"x": [1]}, key="k")}, "its metadata names a column 'k', which it lacks"),
        ({"a": one({"x": [1.5]}, key="x")}, "the primary key 'x' is double: make it integers or text"),
        ({"a": one({"x": [1, 1]}, key="x"), "b": one({"x": [1]}, foreign={"x": "a"})}, "the id occurs a second time"),
        ({"a": KEYED, "b": one({"y": [1.5]}, foreign={"y": "a"})}, "b.parquet: column 'y': Float value 1.5"),
        ({"a": KEYED, "b": one({"y": ["1"]}, foreign={"y": "a"})}, "but the primary keys it holds are integers"),
        ({"a": one({"x": [1, 2], "v": [1.0, 1e39]}, key="x")}, "column 'v', row 2: 1e+39 is no number that float32"),
        ({"a": one({"x": [1], "t": ["now"]}, time="t")}, "the time 't' is"),
        ({"a": one({"x": [1]}, key=["x"])}, "a.parquet: its metadata has pkey_col ['x'], expected text or null"),
        ({"a": one({"x": [1]}, time=3)}, "a.parquet: its metadata has time_col 3, expected text or null"),
        ({"a": one({"x": [1]}, foreign=["x"])}, "fkey_col_to_pkey_table ['x'], expected tables by column, or null"),
        ({"a": one({"x": [1]}, foreign={"x": None})}, "{'x': None}, expected tables by column, or null"),
    ],
)
def test_refused_databases(tmp_path, capsys, tables, message):
    (tmp_path / "db").mkdir()
    for name, table in tables.items():
        save(tmp_path / "db", name, **table)
    assert message in refused(tmp_path, capsys, "--preset", "relbench", "--set", f"folder={tmp_path / 'db'}")


def test_refused_files_and_settings(tmp_path, capsys):
    (tmp_path / "db").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "db" / "a.parquet")
    arguments = ["--preset", "relbench", "--set", f"folder={tmp_path / 'db'}"]
    assert "a.parquet: its metadata lacks b'pkey_col'" in refused(tmp_path, capsys, *arguments)
    (tmp_path / "db" / "a.parquet").write_bytes(b"PAR1")
    assert "a.parquet: not a readable parquet file" in refused(tmp_path, capsys, *arguments)
    assert "--set fill=x: not a number" in refused(tmp_path, capsys, *arguments, "--set", "fill=x")
    assert "--set fill=nan: features are finite" in refused(tmp_path, capsys, *arguments, "--set", "fill=nan")
    assert "give --set folder=FOLDER" in refused(tmp_path, capsys, "--preset", "relbench")
