"""Real sets, converted and partitioned: the answer of any number of ranks is that of one."""

import pytest
from snapshot_runs import assert_like_one_rank, make_config, write_parts

from data_tools.snapshots.pygt import read_json
from data_tools.snapshots.speeds import read_speeds


def read_los(shared_data):
    """A few hours of it."""
    graph = read_speeds(shared_data("tgcn-los/los_speed.csv.gz"), shared_data("tgcn-los/los_adj.csv.gz"))
    graph.num_snapshots = 40
    graph.last[:] = 39
    graph.series["target"] = graph.series["target"][:, :40]
    return graph


SETS = {
    "england_covid": (lambda data: read_json(data("pygt/england_covid.json.gz")), {"train__batch_size": 20}),
    "chickenpox": (lambda data: read_json(data("pygt/chickenpox.json.gz")), {"train__batch_size": 200}),
    "los": (read_los, {"sampling__window_size": 4, "task__forecast_steps": 3, "train__batch_size": 16}),
}


@pytest.mark.parametrize("name", SETS)
def test_real_sets_give_one_answer(comm, mpi_tmp_path, shared_data, name):
    """Edges that change daily with their weights, edges with loops that stay, windows over edges that stay."""
    read, changes = SETS[name]
    parts = write_parts(comm, mpi_tmp_path, read(shared_data))
    config = make_config(**{"inputs__lags": 4, "model__hidden": 8, **changes})
    assert_like_one_rank(comm, parts, config)
