"""A format of source files is a row of FORMATS: with one more row, files of another format are read, nothing else
changed."""

import gzip
import json
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pytest
import yaml
from convert_sources import EDGE, refused, run_spec
from places import REPOSITORY

from data_tools.convert import main, make_parser
from data_tools.source.convert_memory import plan_conversion
from data_tools.source.formats.selection import pick, select_all
from data_tools.source.formats.table import Table
from data_tools.source.formats.tables import FORMATS, Format
from data_tools.source.spec_file import load_spec

pytestmark = pytest.mark.serial

ROWS = [{"u": 3, "i": 8, "t": 1, "stars": 4.5}, {"u": 2, "i": 8, "t": 2, "stars": 1.0}]


class JsonLines(Table):
    """A JSON object a line; its keys are the columns."""

    def batches(self, references):
        with self.source.open() as stream:
            rows = [json.loads(line) for line in stream]
        names = list(rows[0])
        chosen, needed = select_all(self.name, references, names, len(names))
        yield pick(chosen, {p: pa.array([row[names[p]] for row in rows]) for p in needed}, len(rows))

    def unread(self, references):
        with self.source.open() as stream:
            names = list(json.loads(stream.readline()))
        return [name for name in names if name not in references.values()]


@pytest.fixture
def json_lines(monkeypatch):
    monkeypatch.setitem(FORMATS, "jsonl", Format(JsonLines, "a JSON object a line", (".jsonl", ".ndjson")))


def spec_of(**file) -> dict:
    nodes = [{"type": name, "ids": "int"} for name in ("user", "item")]
    return {"files": {"events": file}, "nodes": nodes, "edges": [EDGE]}


def write(path):
    opened = gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w")
    with opened as file:
        file.writelines(json.dumps(row) + "\n" for row in ROWS)


def check(path):
    with h5py.File(path) as file:
        group = file["edges/user.rates.item"]
        assert np.array_equal(file["nodes/user/id"], [2, 3])
        assert (list(group["src"]), list(group["dst"]), list(group["time"])) == ([1, 0], [0, 0], [1, 2])


@pytest.mark.parametrize(
    ("name", "declared"),
    [("e.jsonl", {}), ("e.ndjson.gz", {}), ("e.log", {"format": "jsonl"})],
)
def test_a_row_more_is_a_format_more(tmp_path, capsys, json_lines, name, declared):
    write(tmp_path / name)
    check(run_spec(tmp_path, spec_of(path=name, **declared), "--memory", "2GiB"))
    printed = capsys.readouterr().out
    assert "MiB predicted, 2,048 MiB allowed; at most 2 rows of edges, ids in memory" in printed
    assert f"{name}: columns that are not read: stars" in printed
    plan = plan_conversion(load_spec(tmp_path / "spec.yaml", {}), 2 << 30)
    assert (plan.num_edges, plan.num_buckets) == (2, 0)
    assert '"jsonl": a JSON object a line' in make_parser().format_help()


def test_it_is_read_inside_of_archives(tmp_path, json_lines):
    write(tmp_path / "e.jsonl")
    with zipfile.ZipFile(tmp_path / "raw.zip", "w") as archive:
        archive.write(tmp_path / "e.jsonl", "raw/e.jsonl")
    spec = spec_of(archive="raw", member="e.jsonl")
    spec["files"]["raw"] = {"path": "raw.zip"}
    check(run_spec(tmp_path, spec))


def test_a_format_that_is_in_no_row(tmp_path, capsys, json_lines):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec_of(path="e.jsonl", format="xml")))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert "files.events: format: 'xml' is not one of auto, text, npz, " in message
    assert message.endswith(", idlists, jsonl\n")


def test_without_the_row_it_is_text(tmp_path, capsys):
    write(tmp_path / "e.jsonl")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec_of(path="e.jsonl")))
    assert main(["--spec", str(tmp_path / "spec.yaml"), str(tmp_path / "graph.h5")]) == 2
    assert "e.jsonl: no column 'u'" in capsys.readouterr().err


def test_the_docs_have_a_row_of_every_format():
    text = (REPOSITORY / "docs" / "own_data.md").read_text()
    assert [name for name in FORMATS if f"| `{name}` |" not in text] == []
