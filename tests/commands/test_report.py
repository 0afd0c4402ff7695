"""The report page: what runs wrote, in one file that a browser shows without asking for anything else."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from training_runs import homogeneous, make_config, make_parts, on_rank_0, open_session

from hpcgnn.loop import profile
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.logs import RunLog
from hpcgnn.loop.profile import MOST_PAIRED
from hpcgnn.loop.trainer import Trainer
from hpcgnn.report import svg
from hpcgnn.report.__main__ import main
from hpcgnn.report.records import read_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def folder(tmp_path):
    """A run that was resumed on three ranks."""
    run = tmp_path / "run<1>"
    run.mkdir()
    (run / "config.yaml").write_text("train:\n  lr: 0.001 # <b>\n")
    metrics = [
        {"kind": "epoch", "epoch": n, "train_seconds": 2.0, "samples_per_second": 10.0, "loss": 1 / (n + 1),
         "val_ap": None if n == 1 else 0.5 + n / 10} for n in range(4)
    ]  # fmt: skip
    write(run / "metrics.jsonl", [*metrics, {"kind": "test", "epoch": 3, "test_ap": 0.75}])
    write(run / "stages.jsonl", [start(0, 2), times(1, 0, 2), times(2, 1, 2), start(60, 3), times(61, 2, 3)])
    return run


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def stamp(second):
    return f"2026-01-02T03:{second // 60:02d}:{second % 60:02d}.000+00:00"


def start(second, ranks):
    resumed = "step-7" if second else ""
    return {"time": stamp(second), "kind": "start", "ranks": ranks, "threads": 1, "hosts": ["a"] * ranks,
            "resumed": resumed, "device": "cpu"}  # fmt: skip


def times(second, epoch, ranks):
    sent = (np.arange(ranks)[:, None] != np.arange(ranks)) * 1000
    seconds = {"epoch": [3.0] * ranks, "compute": [1.0 + rank for rank in range(ranks)], "exchange": [0.5] * ranks}
    return {"time": stamp(second), "kind": "epoch", "epoch": epoch, "seconds": seconds, "sent_bytes": sent.tolist(),
            "peak_mib": [100.0] * ranks}  # fmt: skip


@pytest.mark.serial
def test_records_are_those_of_the_newest_number_of_ranks(folder):
    run = read_run(folder)
    assert run.results()["test_ap"] == 0.75
    assert run.curves()["val_ap"] == [(0, 0.5), (2, 0.7), (3, 0.8)]
    assert run.stage_seconds()["compute"].tolist() == [1.0, 2.0, 3.0]
    assert run.sent_bytes().sum() == 6000


@pytest.mark.serial
def test_the_page_needs_nothing_else(folder, capsys):
    assert main([str(folder)]) == 0
    shown = (folder / "report.html").read_text()
    assert str(folder / "report.html") in capsys.readouterr().out
    assert "<script" not in shown
    assert not re.findall(r"(?:src|href)\s*=|url\(|@import", shown)
    assert "run&lt;1&gt;" in shown
    assert "run<1>" not in shown
    assert "resumed from step-7 on 3 ranks" in shown


@pytest.mark.serial
def test_energy_is_that_of_all_epochs_and_machines(folder):
    """Of a line without figures there is no sum."""
    lines = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "epoch":
            line["joules"] = {"a": {"processors": 1500.0, "memory": 500.0}, "b": {"machine": 4000.0}}
    for missing, shown in ((False, "18.0000"), (True, "not available")):
        lines[-1]["joules"] = None if missing else lines[-1]["joules"]
        write(folder / "stages.jsonl", lines)
        assert main([str(folder)]) == 0
        assert f"<td>kJ, all machines</td><td>{shown}</td>" in (folder / "report.html").read_text()


@pytest.mark.serial
def test_a_run_without_stages_and_a_cut_line(folder, tmp_path):
    (folder / "stages.jsonl").unlink()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "ep')
    assert main([str(folder), str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "Stages" not in (tmp_path / "page.html").read_text()


@pytest.mark.serial
@pytest.mark.parametrize("name", ["metrics.jsonl", "stages.jsonl"])
@pytest.mark.parametrize("damage", [b'{"time": "20', b"\xff\xfe", b"[1]", b'"epoch"', b"{}", b"\0" * 9])
def test_damaged_lines_are_left_out(folder, capsys, name, damage):
    """Any of them, with a warning each; the others are shown."""
    lines = (folder / name).read_bytes().splitlines()
    for number in range(len(lines) - 1):
        (folder / name).write_bytes(b"\n".join([*lines[:number], damage, *lines[number + 1 :]]) + b"\n")
        assert main([str(folder)]) == 0
        assert f"warning: {folder / name}, line {number + 1}: " in capsys.readouterr().err
    assert "Results" in (folder / "report.html").read_text()


@pytest.mark.serial
def test_stages_that_are_all_damaged(folder, capsys):
    (folder / "stages.jsonl").write_bytes(b"\0" * 40 + b"\n")
    assert main([str(folder)]) == 0
    assert "stages.jsonl, line 1" in capsys.readouterr().err


@pytest.mark.serial
@pytest.mark.parametrize("ranks", [2, MOST_PAIRED + 1])
def test_bytes_of_many_ranks_are_sums(folder, ranks):
    """Beside a matrix of an earlier version."""
    sums = times(63, 4, ranks) | {"sent_bytes": [5] * ranks}
    write(folder / "stages.jsonl", [start(0, ranks), times(1, 0, ranks), sums])
    assert read_run(folder).sent_bytes().tolist() == [1000 * (ranks - 1) + 5] * ranks
    assert main([str(folder)]) == 0
    assert "bytes sent by rank" in (folder / "report.html").read_text()


@pytest.mark.serial
def test_what_is_no_run(tmp_path, folder, capsys):
    assert main([str(tmp_path / "none")]) == 2
    assert "no metrics.jsonl there" in capsys.readouterr().err
    (folder / "metrics.jsonl").write_text("{\n{}\n")
    assert main([str(folder)]) == 2
    assert "metrics.jsonl, line 1" in capsys.readouterr().err


@pytest.mark.serial
def test_a_line_of_another_program(folder, capsys):
    """Its values are none that a page can show; a chart of nothing is empty."""
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "test", "epoch": {}}\n')
    assert main([str(folder)]) == 2
    assert f"error: {folder}: a line of metrics.jsonl or stages.jsonl is not hpcgnn's" in capsys.readouterr().err
    assert svg.lines({"ap": [(0, np.nan)]}, "ap") == ""


@pytest.mark.serial
@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0), (-3, 1e9), (0.4999, 0.5001), (7, 7.5)])
def test_ticks_are_round_and_inside(low, high):
    found = svg.ticks(low, high)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-9 <= value <= high * (1 + 1e-9) + 1e-9 for value in found)


@pytest.mark.serial
def test_a_browser_shows_it(folder, tmp_path):
    """All pictures have a size, and the text is there."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"needs a browser: one of {', '.join(BROWSERS)}")
    main([str(folder)])
    probe = tmp_path / "probe.html"
    script = "document.body.dataset.low = Math.min(...[...document.querySelectorAll('svg')].map(s => s.clientHeight))"
    probe.write_text((folder / "report.html").read_text().replace("</body>", f"<script>{script}</script></body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1120,2000"]
    command = [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}"]
    found = subprocess.run(
        [*command, "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=200, check=True
    ).stdout
    assert int(re.search(r'data-low="(\d+)"', found)[1]) > 40
    assert found.count("<svg") >= 6
    picture = tmp_path / "page.png"
    subprocess.run([*command, f"--screenshot={picture}", probe.as_uri()], capture_output=True, timeout=200, check=True)
    assert picture.stat().st_size > 20_000


@pytest.mark.serial
def test_a_line_that_lacks_something_is_left_out(folder, capsys):
    """Whatever character of it was changed: another key, no date, a number less."""
    stages = (folder / "stages.jsonl").read_text()
    changes = ["time", "seconds", "sent_bytes", "peak_mib", "hosts", "threads", "2026-01-02T", "100.0, ", "1000, 0"]
    for change in changes:
        (folder / "stages.jsonl").write_text(stages.replace(change, "?" * len(change) if "," not in change else "", 1))
        assert main([str(folder)]) == 0, change
        assert "warning: " in capsys.readouterr().err, change


@pytest.mark.parametrize("paired", [32, 0])
def test_a_run_writes_its_stages(comm, mpi_tmp_path, monkeypatch, paired):
    """Seconds of every rank, bytes by destination as the channels count them, memory; starts too."""
    graph = on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "graph.h5"))
    parts, folder = make_parts(comm, graph, mpi_tmp_path / "parts"), mpi_tmp_path / "run"
    monkeypatch.setattr(profile, "MOST_PAIRED", paired)
    on_rank_0(comm, lambda: (folder.mkdir(), (folder / "stages.jsonl").write_text('{"kind": "epo')) and None)
    session = open_session(comm, parts, make_config(train__epochs=2))
    log = RunLog(folder / "log", comm.rank)
    trainer = Trainer(session, folder, log, StopRequest())
    trainer.start()
    assert trainer.run() == 0
    sent = comm.gather(sum(channel.sent() for channel in session.channels()))
    trainer.close()
    if comm.rank:
        return
    torn, *lines = (folder / "stages.jsonl").read_text().splitlines()
    assert torn == '{"kind": "epo'  # what an earlier start left stays a line of its own
    first, *epochs = [json.loads(line) for line in lines]
    assert [len(read_run(folder).times), len(read_run(folder).damaged)] == [2, 1]
    assert (first["kind"], first["ranks"], len(first["hosts"])) == ("start", comm.size, comm.size)
    assert [line["epoch"] for line in epochs] == [0, 1]
    assert all(len(values) == comm.size for line in epochs for values in line["seconds"].values())
    for line in epochs:
        assert min(line["seconds"]["epoch"]) >= max(line["seconds"]["compute"]) > 0
    counted = np.array([line["sent_bytes"] for line in epochs]).sum(axis=0)
    if paired:
        assert (np.diag(counted) == 0).all()
        assert (counted <= np.array(sent)).all()
    else:
        assert counted.shape == (comm.size,)
        assert (counted <= np.sum(sent, axis=1)).all()
    assert comm.size == 1 or counted.sum() > 0.5 * np.sum(sent)
    text = (folder / "log" / "rank-0.log").read_text()
    assert "computes" in text
    assert "MiB of memory" in text


# Several runs

VALUES = {
    ("0.1", 0): (0.5, 0.7),
    ("0.1", 1): (0.7, 0.8),
    ("0.2", 0): (0.4, 0.9),
    ("0.2", 1): (0.9, 0.6),
    ("0.3", 0): (),
}


def make_runs(root, best="highest", add=()):
    """Runs by learning rate and seed, with metrics ap of validation and test; one that is not at its end."""
    folders = []
    for (rate, seed), values in [*VALUES.items(), *add]:
        run = root / f"run-{len(folders)}"
        run.mkdir(parents=True)
        text = f"kind: static\ntrain: {{lr: {rate}, seed: {seed}, epochs: 2}}\noutput: {{dir: {run}}}\n"
        (run / "config.yaml").write_text(text)
        line = {"kind": "test", "epoch": 1, "monitor": "ap", "best": best}
        line |= {"val_mrr": 0.25, "val_ap": values[0], "test_mrr": None, "test_ap": values[1]} if values else {}
        write(run / "metrics.jsonl", [{"kind": "epoch", "epoch": 0, "loss": 1.0}, *([line] if values else [])])
        folders.append(str(run))
    return folders


@pytest.mark.serial
def test_seeds_of_a_setting_are_one_row(tmp_path, monkeypatch, capsys):
    """With mean and deviation by NumPy; the second run of a seed and unfinished runs do not count, and are named."""
    monkeypatch.chdir(tmp_path)
    folders = make_runs(tmp_path / "runs", add=[(("0.1", 1), (0.1, 0.1))])
    assert main([*folders, "--format", "text"]) == 0
    first, head, *rows, best, third, second = capsys.readouterr().out.splitlines()
    assert first.startswith("runs differ in train.lr, train.seed; mean ± standard deviation")
    assert head.split("  ")[0] == "train.lr"
    assert head.index("val ap") < head.index("val mrr") < head.index("test ap"), "the monitored one first"
    assert len(rows) == 3
    for row, rate in zip(rows, ("0.1", "0.2"), strict=False):
        val, test = np.array([VALUES[rate, seed] for seed in (0, 1)]).T
        cells = [f"{values.mean():.4f} ± {values.std(ddof=1):.4f}" for values in (val, test)]
        assert row.split()[:2] == [rate, "2"]
        assert [row[head.index(name) :][: len(cells[0])] for name in ("val ap", "test ap")] == cells
    assert rows[2].split() == ["0.3", "0"]
    assert best == "best by validation, highest ap: train.lr 0.2"
    assert second == "left out of means: run-4: not at its end"
    assert third == "left out of means: run-5: another run has seed 1, too"
    for lowest in make_runs(tmp_path / "lowest", "lowest")[:1]:
        assert main([lowest, *map(str, sorted((tmp_path / "lowest").iterdir())[1:]), "--format=text"]) == 0
    assert "best by validation, lowest ap: train.lr 0.1" in capsys.readouterr().out


@pytest.mark.serial
def test_the_table_as_csv_has_all_metrics(tmp_path, capsys):
    folders = make_runs(tmp_path)
    assert main([*folders, "--format=csv", "--out", str(tmp_path / "table.csv")]) == 0
    ended = capsys.readouterr()
    assert ended.out == f"{tmp_path / 'table.csv'}\n"
    assert "run-4: not at its end" in ended.err
    first, second, third = csv.DictReader((tmp_path / "table.csv").open())
    assert (first["train.lr"], first["runs"], first["val_ap_runs"]) == ("0.1", "run-0 run-1", "2")
    assert float(first["val_ap_mean"]) == pytest.approx(0.6, abs=1e-15)
    assert float(second["test_ap_std"]) == pytest.approx(np.std([0.9, 0.6], ddof=1), abs=1e-15)
    assert float(second["val_mrr_std"]) == 0
    assert (third["runs"], third["val_ap_mean"], third["val_ap_runs"]) == ("", "", "0")
    assert "test_mrr_mean" not in first, "no run has it"


@pytest.mark.serial
def test_places_of_pages(tmp_path, monkeypatch, capsys):
    """Of one run or one sweep in its folder; of several folders in the current one; of each the place is named."""
    monkeypatch.chdir(tmp_path)
    folders = make_runs(tmp_path / "runs")
    assert main(folders[:2]) == 0
    assert capsys.readouterr().out.endswith("\nreport.html\n")
    assert not (tmp_path / "runs" / "run-0" / "report.html").exists()
    assert "<h2>Settings</h2><p>runs differ in train.seed</p>" in (tmp_path / "report.html").read_text()
    (tmp_path / "runs" / "sweep.yaml").write_text("groups: 1\nruns: {run-0: {}, run-2: {}, unborn: {}}\n")
    assert main(["runs"]) == 0
    ended = capsys.readouterr()
    assert ended.out.endswith("\nruns/report.html\n")
    assert ended.err == "warning: runs/unborn has not begun; left out\n"
    assert "runs differ in train.lr;" in ended.out
    assert main(["runs/sweep.yaml", *folders]) == 0, "as of runs/*"
    assert capsys.readouterr().out.endswith("\nreport.html\n")
    assert main(["runs/sweep.yaml"]) == 2
    assert "runs/sweep.yaml: no metrics.jsonl there" in capsys.readouterr().err
    (tmp_path / "runs" / "run-0" / "config.yaml").write_text("[]")
    assert main(["runs"]) == 2
    assert "config.yaml: expected sections of keys" in capsys.readouterr().err
