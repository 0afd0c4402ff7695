"""Memory of a distributed partition: what is predicted for a rank is kept, and what does not fit is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from partition_sets import parmetis_library

from data_tools.graph.source import open_source
from data_tools.partition.command import partition
from data_tools.partition.memory import Counts, estimate_pairs, predict
from data_tools.partition.options import Options
from data_tools.partition.pair_graph import build_pair_graph
from data_tools.synthesize import synthesize_events
from data_tools.synthetic.static import synthesize_static
from data_tools.team import Ranks, SharedError
from hpcgnn.comm.group import Group

MEASURE = """
import json, sys
import numpy as np
from data_tools.memory import status_bytes
from data_tools.partition.command import partition
from data_tools.team import Ranks
team, said = Ranks(), []
graph, folder, method, more = sys.argv[1:]
program = int(team.largest(np.array([status_bytes("VmRSS")]))[0])
limit = program + (int(more) << 20) if int(more) else None
passes = 1 if method == "ldg" else None
partition(graph, folder, 4, method, passes=passes, memory=limit, report=said.append, team=team)
peaks = team.everyone(status_bytes("VmHWM"))
if team.rank == 0:
    print(json.dumps({"said": said, "limit": limit, "peak": max(peaks)}))
"""


def measured(mpirun, ranks: int, *arguments) -> tuple[int, int | None, int]:
    """Bytes predicted for a rank, its limit, and the largest peak of any rank."""
    found = json.loads(mpirun(ranks, "-c", MEASURE, *arguments).stdout.splitlines()[-1])
    lines = found["said"][0].splitlines()
    assert "allowed a rank; expected" in lines[0]
    predicted = max(int(line.split()[-2].replace(",", "")) for line in lines[1:]) << 20
    return predicted, found["limit"], found["peak"]


KEPT = [("static", "parmetis", 0), ("temporal", "ldg", 150), ("static", "metis", 0)]


@pytest.mark.launcher
@pytest.mark.parametrize(("kind", "method", "more"), KEPT)
def test_the_prediction_holds_and_is_not_far_off(mpirun, tmp_path, kind, method, more):
    if method == "parmetis":
        parmetis_library()
    graph = tmp_path / "graph.h5"
    if kind == "static":
        synthesize_static(graph, 20_000, 300_000, seed=1, width=8)
    else:
        synthesize_events(graph, 300_000, 20_000, 4_000, seed=1)
    predicted, limit, peak = measured(mpirun, 2, str(graph), str(tmp_path / "p"), method, str(more))
    assert peak <= predicted + (1 << 20)
    assert predicted <= 2.5 * peak
    assert limit is None or peak <= limit


def test_pairs_are_estimated_well_on_any_number_of_ranks(comm, mpi_tmp_path):
    team, path = Ranks(Group(comm)), mpi_tmp_path / "graph.h5"
    if team.rank == 0:
        synthesize_events(path, 60_000, 4_000, 800, seed=1)
    team.group.barrier()
    source = open_source(path)
    with source.file:
        found = estimate_pairs(team, source)
        assert found == pytest.approx(len(build_pair_graph(source).neighbor) // 2, rel=0.05)
        assert np.unique(team.everyone(found)).tolist() == [found]
    with pytest.raises((ValueError, SharedError), match=r"takes about .* MiB a rank, .*start more ranks"):
        partition(path, mpi_tmp_path / "set", 2, "ldg", memory=1 << 20, team=team)
    assert not (mpi_tmp_path / "set").exists()


@pytest.mark.serial
@pytest.mark.parametrize("method", ["parmetis", "ldg", "random"])
def test_more_ranks_take_less_each_and_more_of_anything_takes_no_less(method):
    options = Options(16, method, ("nodes",))
    counts = (1_000_000, 20_000_000, 19_000_000, 2, "static")
    two, four = (predict(Counts(*counts, ranks, 1 << 30, 4), options, 64 << 20) for ranks in (2, 4))
    assert all(four[stage] <= two[stage] for stage in two)
    larger = predict(Counts(2_000_000, 40_000_000, 38_000_000, 3, "static", 4, 1 << 31, 8), options, 64 << 20)
    assert all(larger[stage] >= four[stage] for stage in four)
