"""On real events (JODIE's wikipedia): one answer on any number of ranks and parts, and the accuracy it should have."""

import json
from functools import cache

import pytest

from data_tools import convert
from data_tools.partition.command import partition

pytestmark = [pytest.mark.launcher, pytest.mark.timeout(1800)]

# By number of ranks: partition sets to train one epoch on, and where memory is updated.
FIRST_EPOCHS = {
    1: (("metis16", "owner"), ("metis16", "user")),
    2: (("metis16", "owner"), ("metis64", "user")),
    3: (("metis16", "user"),),
    4: (("random64", "owner"), ("metis8", "user")),
    8: (("random8", "owner"),),
}
RUNS = [(ranks, *run) for ranks, runs in FIRST_EPOCHS.items() for run in runs]
SAMPLED = {1: "metis16", 2: "metis64", 3: "random64", 4: "metis8", 8: "random8"}
STRATEGIES = ("recent", "uniform")
EVERY_TIME = (1, 3)  # ranks; others every night, and so the second run on one
RUNS_EVERY_TIME = (RUNS[0], *(run for run in RUNS if run[0] == EVERY_TIME[1]))


def marked(run: tuple) -> list:
    """What the case of a run is marked with."""
    return [pytest.mark.nightly] * (run not in RUNS_EVERY_TIME)


@pytest.fixture(scope="module")
def sets(shared_data, tmp_path_factory):
    """A callable that cuts wikipedia into the partition set of a name, such as metis8, once; returns its folder."""
    folder = tmp_path_factory.mktemp("wikipedia")
    source = shared_data("wikipedia/wikipedia.csv.gz")
    graph = folder / "wikipedia.h5"
    assert convert.main(["--preset", "jodie", "--set", f"events={source}", str(graph)]) == 0

    @cache
    def cut(name):
        method = name.rstrip("0123456789")
        partition(graph, folder / name, int(name[len(method) :]), method)
        return folder / name

    return cut


def training(sets, name, folder):
    return "train", "--config=jobs/train_tgn.yaml", f"--data.path={sets(name)}", f"--output.dir={folder}"


def read(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def done(jobs, sets, tmp_path_factory):
    """A callable that runs one of RUNS, once; returns its folder."""
    exact = ("--train.epochs=1", "--train.precision=float64", "--train.log_every=1")

    @cache
    def run(ranks, name, update_at):
        folder = tmp_path_factory.mktemp("run")
        jobs(ranks, *training(sets, name, folder), *exact, f"--memory.update_at={update_at}")
        jobs.close()
        return folder

    return run


@pytest.fixture(scope="module")
def digests(jobs, sets):
    """A callable that gives the digests of samples on a number of ranks, by strategy."""

    @cache
    def run(ranks):
        found = {strategy: jobs(ranks, "digest", sets(SAMPLED[ranks]), strategy).stdout for strategy in STRATEGIES}
        jobs.close()
        return found

    return run


@pytest.mark.parametrize(("ranks", "name", "update_at"), [pytest.param(*run, marks=marked(run)) for run in RUNS])
def test_first_epoch_has_the_same_losses(done, ranks, name, update_at):
    losses, scores = losses_and_scores(done(ranks, name, update_at))
    expected_losses, expected_scores = losses_and_scores(done(*RUNS[0]))
    assert len(losses) == 184
    assert losses == pytest.approx(expected_losses, rel=1e-9)
    assert scores == pytest.approx(expected_scores, abs=1e-6)


def losses_and_scores(folder):
    """Of all steps, and of the test."""
    records = read(folder)
    scores = [r[key] for r in records if r["kind"] == "test" for key in sorted(r) if key.startswith("test_")]
    return [r["loss"] for r in records if r["kind"] == "step"], scores


@pytest.mark.parametrize("numbers", [EVERY_TIME, pytest.param(tuple(SAMPLED), marks=pytest.mark.nightly)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_samples_are_bit_identical(digests, strategy, numbers):
    """Neighbors, negatives and dropout masks of all 110,232 training events, in one hash."""
    found = {digests(ranks)[strategy] for ranks in numbers}
    assert [len(digest.strip()) for digest in found] == [64]


@pytest.fixture(scope="module")
def test_ap():
    """Test AP by number of ranks."""
    return {}


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_accuracy_within_9_epochs(jobs, sets, tmp_path, test_ap, ranks):
    """After the last of them, without a choice among epochs."""
    arguments = training(sets, "metis16", tmp_path / "run")
    jobs(ranks, *arguments, "--train.epochs=9", "--train.eval_every=9", timeout=1700)
    (test_ap[ranks],) = [record["test_ap"] for record in read(tmp_path / "run") if record["kind"] == "test"]
    assert test_ap[ranks] >= 0.987
    assert max(test_ap.values()) - min(test_ap.values()) < 0.003
