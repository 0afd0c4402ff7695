"""The synthetic graph with the schema of IGB-Heterogeneous: the preset's types and relations, and what is in them."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from data_tools.graph.checks import validate
from data_tools.graph.source import open_source
from data_tools.synthesize import main
from data_tools.synthetic.igbh import synthesize_igbh

pytestmark = pytest.mark.serial

# Types and relations in the order of the preset, with the numbers for a fiftieth of IGBH-tiny.
NODES = {"paper": 2000, "author": 7141, "institute": 175, "fos": 1684, "journal": 162, "conference": 8}
RELATIONS = {
    "paper.cites.paper": 2 * 8948 + 2000, "paper.written_by.author": 9000, "author.rev_written_by.paper": 9000,
    "author.affiliated_to.institute": 6400, "institute.rev_affiliated_to.author": 6400, "paper.topic.fos": 14000,
    "fos.rev_topic.paper": 14000, "paper.published.journal": 1100, "journal.rev_published.paper": 1100,
    "paper.venue.conference": 140, "conference.rev_venue.paper": 140,
}  # fmt: skip


def ends(file: h5py.File, relation: str) -> np.ndarray:
    return np.stack([file[f"edges/{relation}/{end}"][:] for end in ("src", "dst")], axis=1)


def test_types_relations_and_their_reverses(tmp_path, capsys):
    path = tmp_path / "graph.h5"
    assert main(["--igbh", "2000", "--features", "12", "--classes", "19", str(path)]) == 0
    assert "11170 nodes, 81176 edges, 12 features, 19 classes" in capsys.readouterr().out
    source = open_source(path)
    with source.file:
        validate(source)
        assert [(kind.name, kind.num_nodes) for kind in source.types] == list(NODES.items())
        assert [relation.name for relation in source.relations] == list(RELATIONS)
    with h5py.File(path) as file:
        assert {name: len(ends(file, name)) for name in RELATIONS} == RELATIONS
        for name in RELATIONS:
            start, relation, end = name.split(".")
            if not relation.startswith("rev_") and start != end:
                assert np.array_equal(ends(file, name), ends(file, f"{end}.rev_{relation}.{start}")[:, ::-1])
        cites = ends(file, "paper.cites.paper")
        is_loop = cites[:, 0] == cites[:, 1]
        assert np.array_equal(np.sort(cites[is_loop, 0]), np.arange(2000))
        links = cites[~is_loop]
        assert np.array_equal(links[0::2], links[1::2, ::-1])
        label = file["nodes/paper/label"][:]
        same = (label[links[:, 0]] == label[links[:, 1]]).mean()
        assert 0.55 < same < 0.75  # 0.6 within the class for sure, the rest by chance
        assert np.allclose(np.bincount(file["nodes/paper/split"][:]) / 2000, (0.6, 0.2, 0.2), atol=0.04)
        assert all(group["feat"].shape == (NODES[name], 12) for name, group in file["nodes"].items())
        assert ("label" in file["nodes/author"], "split" in file["nodes/author"]) == (False, False)


def test_labels_can_be_learned_from_features(tmp_path):
    """The nearest mean of the features of a class is right more often than the largest class."""
    synthesize_igbh(tmp_path / "graph.h5", 4000, 1, width=256, num_classes=4)
    with h5py.File(tmp_path / "graph.h5") as file:
        label, feat = (file[f"nodes/paper/{name}"][:] for name in ("label", "feat"))
    means = np.stack([feat[:2000][label[:2000] == kind].mean(0) for kind in range(4)])
    nearest = ((feat[2000:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == label[2000:]).mean() > np.bincount(label).max() / len(label) + 0.1


def test_same_for_the_same_arguments(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize_igbh(tmp_path / name, 200, seed, width=3, num_classes=5)
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second
    assert first != other


def test_sizes_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="papers=1"):
        synthesize_igbh(tmp_path / "graph.h5", 1, 1)
