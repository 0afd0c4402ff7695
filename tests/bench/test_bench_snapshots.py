"""``hpcgnn.bench snapshots``: what ranks send is what the partition says, and what is refused."""

import pytest
from snapshot_runs import make_config, make_parts, one_thread, open_session

from hpcgnn.bench import peer_pygt, snapshots


@pytest.mark.parametrize("kind", snapshots.STACKED)
def test_bytes_are_those_of_the_halo(comm, mpi_tmp_path, kind):
    """Hidden rows of two layers more than the first, forward and backward; inputs travel in the first epoch alone."""
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(data__path=str(parts), inputs__lags=2, model__kind=kind, model__layers=3, train__batch_size=4)
    config.comm.threads = 1
    options = snapshots.TimingOptions(2, "", "none")
    result = snapshots.measure(config, mpi_tmp_path, options, one_thread(comm))
    assert result["row_bytes_sent"] == result["row_bytes_expected"]
    assert (result["row_bytes_sent"] > 0) == (comm.size > 1)
    assert ("halo_wait_without_overlap" in result) == (comm.size > 1)
    assert "epoch:" in snapshots.table(result)


def test_routes_made_for_a_step_are_let_go(comm, mpi_tmp_path):
    parts = make_parts(comm, mpi_tmp_path)
    held = {}
    for routes in ("kept", "fresh"):
        config = make_config(inputs__lags=1, sampling__routes=routes, train__batch_size=2)
        session = open_session(comm, parts, config)
        with session.plans("train", 0) as plans:
            for plan in plans:
                session.task.train(plan)
        held[routes] = len(session.loaders["train"].planner._built)
    assert held["fresh"] == 0
    assert held["kept"] > 2


@pytest.mark.serial
def test_what_cannot_be_compared_is_refused(monkeypatch):
    monkeypatch.setattr(peer_pygt, "NEEDED", ("no_such_package",))
    with pytest.raises(ValueError, match="needs no_such_package"):
        peer_pygt.check(make_config())
    monkeypatch.setattr(peer_pygt, "NEEDED", ())
    with pytest.raises(ValueError, match=r"compares model\.kind tgcn"):
        peer_pygt.check(make_config(model__kind="gcn"))
