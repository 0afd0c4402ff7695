"""Names that the guide of an earlier version imports: they lead where the present ones do, with a warning."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from hpcgnn import former_names

NAMES = {
    "hpcgnn.loader": ("TemporalGraph", "TemporalLoader"),
    "hpcgnn.graph_loader": ("NeighborLoader", "NeighborBatch", "StaticGraph"),
    "hpcgnn.link_loader": ("LinkNeighborLoader", "LinkBatch"),
    "hpcgnn.static_graph": ("StaticGraph", "induced_subgraph"),
    "hpcgnn.pyg": ("to_data",),
    "hpcgnn.nn.config": ("MemoryConfig", "ModelConfig"),
    "hpcgnn.nn.graph_config": ("GraphModelConfig",),
    "hpcgnn.nn.temporal": ("Sizes", "TemporalModel"),
    "hpcgnn.nn.graph_models": ("GraphModel", "GraphSizes", "make_model"),
    "hpcgnn.nn.message_blocks": ("Batch", "Block", "Adjacency"),
    "hpcgnn.nn.batch_norm": ("BatchNorm",),
    "hpcgnn.nn.sequence_model": ("SequenceModel",),
    "hpcgnn.nn.snapshot": ("Frame",),
    "hpcgnn.run.settings": ("TrainConfig",),
    "hpcgnn.sample.config": ("SamplingConfig",),
    "hpcgnn.sample.delivery": ("Mailing",),
    "hpcgnn.sample.graph_neighbors": ("NeighborSampler",),
    "hpcgnn.static.rows": ("NodeRows",),
    "hpcgnn.store.book": ("Book",),
    "hpcgnn.store.features": ("FeatureConfig", "NodeRows"),
    "hpcgnn.store.files": ("FileFormatError", "book_path"),
    "hpcgnn.store.memory": ("NodeMemory",),
}


def test_every_former_module_is_listed():
    assert NAMES.keys() == former_names.SUCCESSORS.keys()


@pytest.mark.serial
@pytest.mark.parametrize("module", NAMES)
def test_former_names_are_present_ones(module, monkeypatch):
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.warns(DeprecationWarning, match=former_names.SUCCESSORS[module][0]):
        former = importlib.import_module(module)
    present = [importlib.import_module(name) for name in former_names.SUCCESSORS[module]]
    for name in NAMES[module]:
        assert any(getattr(former, name) is getattr(successor, name, None) for successor in present), name


@pytest.mark.serial
def test_other_names_are_missing_as_ever():
    with pytest.raises(ModuleNotFoundError, match=r"hpcgnn\.sample\.nothing"):
        importlib.import_module("hpcgnn.sample.nothing")


@pytest.mark.serial
def test_a_former_name_works_in_a_program():
    done = subprocess.run(
        [sys.executable, "-c", "from hpcgnn.sample.config import SamplingConfig; print(SamplingConfig().fanout)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "10"
