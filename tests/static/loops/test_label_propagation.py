"""Label propagation against NumPy, on any number of ranks; what it reports, and what it refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from static_runs import make_static_parts, open_graph_session, plain, static_config, typed

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.baselines import run_baseline
from hpcgnn.loop.launch import EXIT_DONE
from hpcgnn.static.config import GraphBaselineConfig
from hpcgnn.static.session import baseline_metrics
from hpcgnn.task.baselines import LinkBaselineConfig

OF_PAPERS = ["paper.cites.paper", "author.writes.paper"]
CASES = {
    "plain": (plain, {}), "weighted": (plain, {"model__kind": "sage", "model__edge_weights": True}),
    "typed": (typed, {}), "chosen": (typed, {"baseline__relations": OF_PAPERS, "baseline__alpha": 0.5}),
    "whole": (typed, {"train__full_graph": True, "sampling__fanouts": []}),
}  # fmt: skip


def config_of(**changes):
    return static_config(baseline__kind="label_propagation", baseline__steps=4, **changes)


def expected(path, config) -> tuple[dict[str, float], dict[str, int]]:
    """Accuracy and number of nodes that no label reaches, by split, by dense products."""
    with h5py.File(path) as file:
        types = sorted(file["nodes"], key=lambda name: file[f"nodes/{name}"].attrs["type_id"])
        sizes = [file[f"nodes/{name}"].attrs["num_nodes"] for name in types]
        start = dict(zip(types, np.cumsum([0, *sizes]), strict=False))
        matrix = np.zeros((sum(sizes), sum(sizes)))
        for name in config.baseline.relations or file["edges"]:
            src, _, dst = name.split(".")
            edges = file[f"edges/{name}"]
            weight = edges["weight"][:] if config.model.edge_weights else 1.0
            np.add.at(matrix, (edges["dst"][:] + start[dst], edges["src"][:] + start[src]), weight)
        (labeled,) = (name for name in types if "label" in file[f"nodes/{name}"])
        label, split = (file[f"nodes/{labeled}/{name}"][:] for name in ("label", "split"))
    degree = matrix.sum(1)
    scale = np.where(degree > 0, np.maximum(degree, 1e-9) ** -0.5, 0 if config.model.edge_weights else 1)
    matrix = scale[:, None] * matrix * scale
    first, train = start[labeled], split == 0
    given = np.zeros((len(matrix), label.max() + 1))
    given[first + np.flatnonzero(train), label[train]] = 1
    scores = given
    for _ in range(4):
        scores = config.baseline.alpha * matrix @ scores + (1 - config.baseline.alpha) * given
    scores = scores[first : first + len(label)]
    reached = scores.sum(1) > 0
    scores[~reached] = np.bincount(label[train])
    hit = scores.argmax(1) == label
    return (
        {name: hit[split == number].mean() for number, name in ((1, "val"), (2, "test"))},
        {name: (~reached)[split == number].sum() for number, name in ((1, "val"), (2, "test"))},
    )


@pytest.mark.parametrize("case", CASES)
def test_accuracy_is_that_of_numpy(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts, config = make_static_parts(comm, make, mpi_tmp_path), config_of(**changes)
    session, stop = open_graph_session(comm, parts, config), SimpleNamespace(requested=False)
    assert run_baseline(session, mpi_tmp_path, lambda _: None, stop, baseline_metrics) == EXIT_DONE
    record = json.loads((mpi_tmp_path / "metrics.jsonl").read_text())
    accuracy, unreached = expected(mpi_tmp_path / "graph.h5", config)
    for split in ("val", "test"):
        assert record[f"{split}_accuracy"] == pytest.approx(accuracy[split], abs=1e-12)
        assert record[f"{split}_unreached"] == unreached[split]
    assert record["baseline"] == "label_propagation"
    assert (unreached["val"] > 0) == (make is typed)  # some papers have no in-edges


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_scores_do_not_depend_on_ranks(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts, config = make_static_parts(comm, make, mpi_tmp_path), config_of(**changes)
    session, alone = (open_graph_session(each, parts, config) for each in (comm, MPI.COMM_SELF))
    scores, whole = (each.goal.label_scores(config.baseline, each.graph)[0] for each in (session, alone))
    of_row = dict(zip(alone.partition.flat_row, whole.numpy(), strict=True))
    np.testing.assert_allclose(scores, [of_row[row] for row in session.partition.flat_row], rtol=1e-9, atol=1e-12)


def test_what_does_not_go_with_labels_is_refused(comm, mpi_tmp_path):
    for values, named in (
        ({"steps": 0}, "baseline.steps must be at least 1"), ({"alpha": 1.0}, "baseline.alpha between 0 and 1"),
        ({"l2": 3.0}, "baseline.l2: baseline.kind label_propagation does not read it"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            GraphBaselineConfig("label_propagation", **values)
    with pytest.raises(ValueError, match=r"baseline.alpha: baseline.kind item_cf does not read it"):
        GraphBaselineConfig("item_cf", alpha=0.5)
    with pytest.raises(ValueError, match=r"predicts classes of nodes: use task.kind node"):
        config_of(task__kind="link")
    with pytest.raises(ValueError, match=r"baseline.kind must be one of popularity"):
        LinkBaselineConfig("label_propagation")
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    config = config_of(baseline__relations=["paper.likes.paper"])
    with pytest.raises(DistributedError, match=r"baseline.relations: no relation paper.likes.paper; the graph has"):
        baseline_metrics(open_graph_session(comm, parts, config), config.baseline)
