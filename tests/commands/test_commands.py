"""The commands as a user starts them: train without arguments, evaluate, predict, info, bench."""

import csv
import json

import numpy as np
import pytest

pytestmark = pytest.mark.launcher

SMALL = ["--data.synthetic_events=3000", "--memory.dim=8", "--model.time_dim=8", "--model.hidden=8",
         "--train.batch_size=200"]  # fmt: skip


@pytest.fixture(scope="module")
def finished(mpirun, tmp_path_factory):
    """A run of two ranks on built-in events, two epochs, float64."""
    folder = tmp_path_factory.mktemp("run") / "run"
    arguments = [*SMALL, "--train.epochs=2", "--train.precision=float64", f"--output.dir={folder}"]
    result = mpirun(2, "-m", "hpcgnn.train", *arguments)
    assert "best epoch" in result.stdout
    return folder


def lines(folder, kind):
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [r for r in records if r["kind"] == kind]


def write_pairs(path, rows, header=("src", "dst", "time")):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def read_scores(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_run_folder_holds_what_it_promises(finished):
    assert (finished / "config.yaml").read_text().startswith("# hpcgnn: ")
    assert {p.name for p in (finished / "log").iterdir()} == {"rank-0.log", "rank-1.log"}
    assert (finished / "checkpoints").is_dir()
    epochs = lines(finished, "epoch")
    assert [e["epoch"] for e in epochs] == [0, 1]
    assert {"train_seconds", "samples_per_second", "loss", "val_ap", "val_auc", "val_inductive_ap"} <= set(epochs[0])
    assert {"test_ap", "test_auc"} <= set(lines(finished, "test")[0])


@pytest.mark.parametrize("ranks", [1, 3])
def test_evaluate_gives_the_runs_own_test_scores_on_any_number_of_ranks(jobs, finished, ranks):
    result = jobs(ranks, "evaluate", finished)
    found = json.loads(result.stdout.strip().splitlines()[-1])
    for name, value in lines(finished, "test")[0].items():
        if name.startswith(("val_", "test_")) and value is not None:
            assert found[name] == pytest.approx(value, rel=1e-9)


def test_predict_takes_and_gives_original_ids_on_any_number_of_ranks(jobs, finished, tmp_path):
    """The built-in graph's ids are 1000 + 3 * row: a mix-up with row ids would be refused or score another pair."""
    pairs = tmp_path / "pairs.csv"
    rows = [(1000 + 3 * (i % 50), 1000 + 3 * (i % 20), "") for i in range(450)]
    write_pairs(pairs, rows)
    tables = []
    for ranks in (1, 2, 3):
        out = tmp_path / f"scores-{ranks}.csv"
        jobs(ranks, "predict", finished, "--pairs", pairs, "--out", out)
        tables.append(read_scores(out))
    assert [(int(r["src"]), int(r["dst"])) for r in tables[0]] == [r[:2] for r in rows]
    scores = np.array([[float(r["score"]) for r in table] for table in tables])
    assert ((scores > 0) & (scores < 1)).all()
    assert np.ptp(scores[0]) > 0.01
    np.testing.assert_allclose(scores[1:], scores[[0, 0]], rtol=1e-9)


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([(1000, 1001, "")], ("src", "dst", "time"), "row 1: dst '1001' is no item of this graph"),
        ([(1000, 1000, "x")], ("src", "dst", "time"), "row 1: time 'x' is not an integer"),
        ([(1000, 1000)], ("src", "item"), "no column dst; it has src, item"),
    ],
)
def test_predict_refuses_bad_pairs(jobs, finished, tmp_path, rows, header, message):
    pairs = tmp_path / "pairs.csv"
    write_pairs(pairs, rows, header)
    result = jobs(2, "predict", finished, "--pairs", pairs, "--out", tmp_path / "out.csv", check=False)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_info_checks_itself(jobs, ranks):
    result = jobs(ranks, "info")
    assert "self-check: kernels and exchange agree" in result.stdout
    assert f"local rank {ranks - 1} of {ranks}" in result.stdout


def test_bench_prints_stages_bytes_and_memory(jobs, tmp_path):
    out = tmp_path / "bench.json"
    result = jobs(2, "bench", *SMALL, "--repeat=1", f"--out={out}")
    found = json.loads(out.read_text())
    assert found["ranks"] == 2
    assert found["bytes_sent_per_rank_and_step"] > 0
    assert sum(found["stages"][n] for n in ("compute", "exchange", "write-back")) <= 1.05 * found["epoch_seconds"]
    for word in ("compute", "exchange", "write-back", "plan (background)", "peak memory"):
        assert word in result.stdout


def test_steps_use_memory_again(mpirun, tmp_path):
    """A step's tensors take thousands of pages; in the long run the system is asked for next to none."""
    out = tmp_path / "bench.json"
    mpirun(1, "-m", "hpcgnn.bench", "--data.synthetic_events=6000", "--repeat=4", f"--out={out}")
    assert json.loads(out.read_text())["pages_per_step"] < 64


@pytest.mark.parametrize("command", ["train", "evaluate", "predict", "info", "bench"])
def test_every_command_has_help(mpirun, command):
    result = mpirun(1, "-m", f"hpcgnn.{command}", "--help")
    assert f"usage: hpcgnn {command}" in result.stdout
