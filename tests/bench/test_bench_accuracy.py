"""Rows of the accuracy table: they are made, trained and read as they say, and have their run files."""

from __future__ import annotations

import json
import statistics

import pytest
import yaml
from places import REPOSITORY

from hpcgnn.bench import accuracy
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.loop.launch import EXIT_DONE

ROW = {
    "model": "SAGE", "data": "a built-in graph", "source": "here",
    "make": "python -c \"import hpcgnn; hpcgnn.make_synthetic_graph('parts', num_nodes=300)\"\ncp \"$source/note\" .\n",
    "each": ["train.seed=0,1"], "metrics": ["test_accuracy"], "ours": {"test_accuracy": [0.5, 0.25]},
    "published": {"nobody, 2020": "0.9"},
    "rules": {"the majority": "0.3"},
}  # fmt: skip
RUN = {"kind": "static", "model": {"layers": 1, "hidden": 4}, "sampling": {"fanouts": [3]}, "train": {"epochs": 2}}


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A folder with a table of one row, its run file and its downloads, which is the working folder."""
    (tmp_path / "table.yaml").write_text(yaml.safe_dump({"small": ROW}))
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(RUN))
    (tmp_path / "downloads/here").mkdir(parents=True)
    (tmp_path / "downloads/here/note").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(accuracy, "TABLE", tmp_path / "table.yaml")
    monkeypatch.setattr(accuracy, "run_files", lambda: tmp_path)
    return tmp_path


@pytest.mark.serial
def test_a_row_is_repeated_once(rows, capsys):
    """The means are of the runs' last lines; a second call trains nothing, and finds the same."""
    for _ in range(2):
        assert accuracy.main(World.alone(), ["small", "--out", "found.json"]) == EXIT_DONE
        printed, found = capsys.readouterr().out, json.loads((rows / "found.json").read_text())["small"]
        paths = sorted((rows / "accuracy/small/runs").glob("seed=*/metrics.jsonl"))
        values = [json.loads(path.read_text().splitlines()[-1])["test_accuracy"] for path in paths]
        assert found["metrics"]["test_accuracy"] == values
        assert len(values) == 2
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        assert f"test_accuracy: {mean:.4f} ± {deviation:.4f} over 2 runs; recorded 0.5000 ± 0.2500" in printed
        assert "nobody, 2020: 0.9" in printed
        assert "the majority: 0.3" in printed
        (rows / "downloads/here/note").unlink(missing_ok=True)  # which the commands need that make the graph


@pytest.mark.serial
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["large"], "no row 'large'; rows are small"),
        (["small", "--downloads", "nowhere"], "nowhere/here does not exist: download a built-in graph into it"),
    ],
)
def test_what_cannot_be_repeated_is_refused(rows, arguments, message):
    with pytest.raises(DistributedError, match=message):
        accuracy.main(World.alone(), arguments)


@pytest.mark.serial
def test_a_graph_that_cannot_be_made_names_the_commands(rows):
    (rows / "downloads/here/note").unlink()
    with pytest.raises(DistributedError, match=r"(?s)the graph could not be made by\n.*cp: cannot stat"):
        accuracy.main(World.alone(), ["small"])


@pytest.mark.serial
def test_rows_have_run_files_and_are_listed(capsys):
    table = accuracy.read_table(accuracy.TABLE)
    assert accuracy.main(World.alone(), []) == EXIT_DONE
    printed = capsys.readouterr().out
    for name, row in table.items():
        assert (REPOSITORY / "jobs/accuracy" / f"{name}.yaml").exists()
        assert f"{name:24}{row.model}: {row.data}" in printed
        assert set(row.ours) == set(row.metrics)


QUICK = [name for name, row in accuracy.read_table(accuracy.TABLE).items() if row.seconds * 5 < 60]


@pytest.mark.serial
@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_a_row_gives_what_is_recorded(name, shared_data, monkeypatch, tmp_path):
    """Another processor rounds otherwise: means are within three standard deviations, which are at least 0.003."""
    row = accuracy.read_table(accuracy.TABLE)[name]
    monkeypatch.chdir(tmp_path)
    downloads = shared_data(row.source).parent
    assert accuracy.main(World.alone(), [name, "--downloads", str(downloads), "--out", "found.json"]) == EXIT_DONE
    found = json.loads((tmp_path / "found.json").read_text())[name]["metrics"]
    for metric, (mean, deviation) in row.ours.items():
        assert statistics.fmean(found[metric]) == pytest.approx(mean, abs=3 * max(deviation, 0.003)), metric
