"""Static steps drawn on the device are those drawn on the host: bit for bit, in training and in evaluation."""

from __future__ import annotations

import pytest
import test_graph_links
import test_graph_training
from mpi4py import MPI
from static_runs import make_static_parts, open_graph_session, plain, static_config, typed
from test_resident import compare_plans, emulated  # noqa: F401

from hpcgnn.comm.world import DistributedError

pytestmark = pytest.mark.serial
CASES = {name: (typed, changes) for name, changes in test_graph_training.TYPED.items()}
CASES |= {name: (plain, changes) for name, changes in test_graph_training.PLAIN.items()}
CASES |= {
    "several at a time": (typed, {"sampling__in_flight": 2, "sampling__eval_fanouts": [2, -1]}),
    "features in files": (plain, {"features__storage": "file"}),
}


@pytest.mark.parametrize("case", CASES)
def test_plans_are_those_of_the_host(tmp_path, emulated, case):  # noqa: F811
    make, changes = CASES[case]
    parts = make_static_parts(MPI.COMM_SELF, make, tmp_path)
    on_device, on_host = (
        open_graph_session(MPI.COMM_SELF, parts, static_config(**changes, sampling__plan_on=planner))
        for planner in ("device", "host")
    )
    assert on_device.loaders["train"].draw.on_device
    assert not on_host.loaders["train"].draw.on_device
    assert compare_plans(on_device, on_host, (("train", 0), ("train", 1), ("val", 0))) > 5


def test_auto_takes_the_host_where_the_device_cannot(tmp_path, emulated):  # noqa: F811
    make, changes = test_graph_links.CASES["friends"]
    parts = make_static_parts(MPI.COMM_SELF, make, tmp_path)
    session = open_graph_session(MPI.COMM_SELF, parts, test_graph_links.link_config(**changes))
    assert not session.loaders["train"].draw.on_device
    session.close()
    with pytest.raises((ValueError, DistributedError), match="a batch's own edges are left out"):
        open_graph_session(
            MPI.COMM_SELF, parts, test_graph_links.link_config(**changes, sampling__plan_on="device")
        )  # fmt: skip
