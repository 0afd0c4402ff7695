"""On real events (JODIE's wikipedia): one answer on any number of ranks and parts, and the accuracy it should have."""

import json
from pathlib import Path

import pytest

from data_tools import convert
from data_tools.partition import partition

pytestmark = [pytest.mark.launcher, pytest.mark.slow]

# ranks, partition set, where memory is updated
RUNS = [(1, "metis16", "owner"), (1, "metis16", "user"), (2, "metis16", "owner"), (3, "metis16", "user"),
        (4, "random64", "owner"), (8, "random8", "owner"), (2, "metis64", "user"), (4, "metis8", "user")]  # fmt: skip


@pytest.fixture(scope="module")
def sets(shared_data, tmp_path_factory):
    """Folders of partition sets of wikipedia, by name."""
    folder = tmp_path_factory.mktemp("wikipedia")
    source = shared_data("wikipedia/wikipedia.csv.gz")
    graph = folder / "wikipedia.h5"
    assert convert.main(["--preset", "jodie", "--set", f"events={source}", str(graph)]) == 0
    for name in ("metis8", "metis16", "metis64", "random8", "random64"):
        method = name.rstrip("0123456789")
        partition(graph, folder / name, int(name[len(method) :]), method)
    return folder


def train(mpirun, sets, tmp_path, ranks, name, *arguments):
    folder = tmp_path / "run"
    given = (f"--data.path={sets / name}", f"--output.dir={folder}", *arguments)
    mpirun(ranks, "-m", "hpcgnn.train", "--config", "jobs/train_tgn.yaml", *given, timeout=580)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference():
    """The losses of the first run that a test made; all others must agree."""
    return {}


@pytest.mark.parametrize(("ranks", "name", "update_at"), RUNS)
def test_first_epoch_has_the_same_losses(mpirun, sets, tmp_path, reference, ranks, name, update_at):
    arguments = (
        "--train.epochs=1",
        "--train.precision=float64",
        "--train.log_every=1",
        f"--memory.update_at={update_at}",
    )
    records = train(mpirun, sets, tmp_path, ranks, name, *arguments)
    losses = [r["loss"] for r in records if r["kind"] == "step"]
    scores = [r[key] for r in records if r["kind"] == "test" for key in sorted(r) if key.startswith("test_")]
    assert len(losses) == 184
    if "losses" not in reference:
        reference |= {"losses": losses, "scores": scores}
    assert losses == pytest.approx(reference["losses"], rel=1e-9)
    assert scores == pytest.approx(reference["scores"], abs=1e-6)


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
def test_samples_are_bit_identical(mpirun, sets, strategy):
    """Neighbours, negatives and dropout masks of all 110,232 training events, in one hash."""
    program = str(Path(__file__).with_name("sample_digest.py"))
    digests = [
        mpirun(ranks, program, str(sets / name), strategy).stdout.split()[-1]
        for ranks, name in ((1, "metis16"), (2, "metis64"), (3, "random64"), (4, "metis8"), (8, "random8"))
    ]
    assert len(digests[0]) == 64
    assert len(set(digests)) == 1


@pytest.fixture(scope="module")
def test_ap():
    """Test AP by number of ranks."""
    return {}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_accuracy_within_15_epochs(mpirun, sets, tmp_path, test_ap, ranks):
    records = train(mpirun, sets, tmp_path, ranks, "metis16", "--train.epochs=15", "--train.patience=0")
    test_ap[ranks] = records[-1]["test_ap"]
    assert records[-1]["kind"] == "test"
    assert test_ap[ranks] >= 0.987
    assert max(test_ap.values()) - min(test_ap.values()) < 0.003
