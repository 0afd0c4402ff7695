"""Input features are standardized by the moments of training nodes, which a model keeps for other graphs."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, plain, static_config, typed
from test_edge_weights import outputs
from training_runs import on_rank_0

CASES = {
    "sage": {}, "gat": {"model__kind": "gat"}, "whole": {"train__full_graph": True},
    "file": {"features__storage": "file"}, "residual": {"model__residual": True, "model__input_dropout": 0.2},
    "embeddings": {"node_embedding__types": ["node"]},
}  # fmt: skip


def moved(path, scale: float = 50.0):
    """The plain graph, whose features are far from 0, one of them the same everywhere."""
    written = plain(path)
    with h5py.File(path, "r+") as file:
        feat = file["nodes/node/feat"][()] * scale + 1000
        feat[:, 2] = 7
        file["nodes/node/feat"][...] = feat
    return written


def by_hand(path):
    """The same graph, with features that are standardized in the file."""
    written = moved(path)
    with h5py.File(path, "r+") as file:
        feat, training = file["nodes/node/feat"][()].astype(float), file["nodes/node/split"][()] == 0
        deviation = feat[training].std(0)
        feat = (feat - feat[training].mean(0)) / np.where(deviation > 0, deviation, 1)
        del file["nodes/node/feat"]
        file["nodes/node/feat"] = feat
    return written


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_that_on_standardized_features(comm, mpi_tmp_path, case):
    found = []
    for make, standardize in ((moved, True), (by_hand, False)):
        folder = mpi_tmp_path / make.__name__
        on_rank_0(comm, lambda folder=folder: (folder / "run").mkdir(parents=True))
        parts = make_static_parts(comm, make, folder)
        config = static_config(features__standardize=standardize, train__epochs=2, **CASES[case])
        trainer = open_graph_trainer(comm, parts, folder / "run", config)
        trainer.start()
        trainer.run()
        found.append((trainer.flat.parameter.detach().clone(), outputs(trainer.session)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-8, atol=1e-10)
    if comm.rank == 0:
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-8, atol=1e-10)


def test_types_have_moments_each(comm, mpi_tmp_path):
    """Of training nodes where a type has a split, of all nodes elsewhere; none without features."""
    session = open_graph_session(
        comm, make_static_parts(comm, typed, mpi_tmp_path), static_config(features__standardize=True)
    )
    buffers = dict(session.model.input.named_buffers())
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        for kind, name in enumerate(session.partition.types):
            columns = file[f"nodes/{name}"]
            if "feat" not in columns:
                assert f"mean_{kind}" not in buffers
                continue
            feat = columns["feat"][()].astype(float)
            feat = feat[columns["split"][()] == 0] if "split" in columns else feat
            np.testing.assert_allclose(buffers[f"mean_{kind}"], feat.mean(0), rtol=1e-9)
            np.testing.assert_allclose(buffers[f"deviation_{kind}"], feat.std(0), rtol=1e-9)


@pytest.mark.serial
def test_models_of_ones_own_are_refused():
    with pytest.raises(ValueError, match=r"features.standardize is for built-in models"):
        static_config(features__standardize=True, model__class_path="a.B")
