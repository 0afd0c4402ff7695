"""Larger graphs: they train on 4 ranks, memory per rank falls with ranks, partitioning stays within its memory."""

import json
import os
import subprocess
import sys

import pytest

from data_tools import convert
from data_tools.partition.command import partition

pytestmark = pytest.mark.launcher

# Every process has loaded Python, torch and MPI before it reads anything.
BASE_MIB = 430
SMALL = ("--memory.dim=16", "--model.time_dim=16", "--model.hidden=16")


@pytest.fixture(scope="module")
def mathoverflow(shared_data, tmp_path_factory):
    """A partition set of sx-mathoverflow: 506,550 events among 24,818 nodes, with self-loops."""
    folder = tmp_path_factory.mktemp("mathoverflow")
    source = shared_data("sx-mathoverflow/sx-mathoverflow.txt.gz")
    arguments = ["--preset", "snap-temporal", "--sort", "--set", f"events={source}", str(folder / "graph.h5")]
    assert convert.main(arguments) == 0
    partition(folder / "graph.h5", folder / "parts", 16)
    return folder / "parts"


@pytest.mark.nightly
def test_memory_per_rank_falls_with_ranks(mpirun, mathoverflow, tmp_path):
    peaks = {}
    for ranks in (1, 4):
        out = tmp_path / f"bench-{ranks}.json"
        arguments = (f"--data.path={mathoverflow}", "--train.batch_size=4000", "--repeat=1", f"--out={out}", *SMALL)
        mpirun(ranks, "-m", "hpcgnn.bench", *arguments)
        peaks[ranks] = max(json.loads(out.read_text())["peak_memory_mib"]) - BASE_MIB
    assert peaks[4] < 0.6 * peaks[1]


@pytest.mark.nightly
def test_many_contacts_among_few_people_train_on_four_ranks(mpirun, shared_data, tmp_path):
    source = shared_data("sociopatterns-SFHH/tij_pres_SFHH.txt.zip")
    graph, parts, run = (tmp_path / name for name in ("graph.h5", "parts", "run"))
    assert convert.main(["--preset", "snap-temporal", "--set", f"events={source}", str(graph)]) == 0
    partition(graph, parts, 8)
    arguments = (f"--data.path={parts}", f"--output.dir={run}", "--train.batch_size=8000", "--train.epochs=1", *SMALL)
    mpirun(4, "-m", "hpcgnn.train", "--task.negative_pool=all", *arguments)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["kind"] == "test"
    assert last["test_ap"] > 0.6


@pytest.mark.nightly
def test_ten_million_events_are_partitioned_within_4_gib(tmp_path):
    graph = tmp_path / "graph.h5"
    sizes = ("--events", "10000000", "--users", "500000", "--items", "100000", "--seed", "1")
    for module, *arguments in (
        ("data_tools.synthesize", *sizes, str(graph)),
        ("data_tools.partition", str(graph), str(tmp_path / "parts"), "--parts", "64"),
    ):
        process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        assert usage.ru_maxrss / 2**20 < 4
