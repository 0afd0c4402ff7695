"""R-MAT graphs: reproducible, valid, skewed as their probabilities say, and numbered anew without loss."""

import h5py
import numpy as np
import pytest

from data_tools.graph.checks import validate
from data_tools.graph.source import open_source
from data_tools.synthesize import main
from data_tools.synthetic import static as synthetic_static
from data_tools.synthetic.rmat import FACTOR, INVERSE, draw_places, permute, synthesize_rmat

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("levels", [1, 2, 3, 8, 13])
def test_places_and_rows_are_permutations_of_each_other(levels):
    places = np.arange(1 << levels)
    rows = permute(places, levels, FACTOR)
    np.testing.assert_array_equal(np.sort(rows), places)
    np.testing.assert_array_equal(permute(rows, levels, INVERSE), places)


@pytest.mark.parametrize("quarters", [(0.57, 0.19, 0.19, 0.05), (0.1, 0.2, 0.3, 0.4), (0.25, 0.25, 0.25, 0.25)])
def test_links_fall_into_quarters_as_often_as_told(quarters):
    first, second = draw_places(200_000, 5, quarters, np.random.default_rng(1))
    for level in range(5):
        cell = 2 * (first >> level & 1) + (second >> level & 1)
        np.testing.assert_allclose(np.bincount(cell, minlength=4) / 200_000, quarters, atol=0.006)


def test_same_arguments_give_the_same_bytes_and_others_do_not(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize_rmat(tmp_path / name, 256, 3000, seed, width=3)
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second
    assert first != other


def test_the_file_is_a_valid_static_graph_with_a_few_hubs(tmp_path, capsys):
    arguments = ["--rmat", "--num_nodes", "4096", "--num_edges", "80000", "--features", "5", "--classes", "8"]
    assert main([*arguments, str(tmp_path / "g.h5")]) == 0
    assert "4096 nodes, 80000 edges, 5 features, 8 classes" in capsys.readouterr().out
    source = open_source(tmp_path / "g.h5")
    with source.file:
        validate(source)
        assert source.kind == "static"
        assert source.types[0].columns == ("feat", "id", "label", "split")
    with h5py.File(tmp_path / "g.h5") as file:
        src, dst = (file["edges/node.to.node"][name][:] for name in ("src", "dst"))
        label = file["nodes/node/label"][:]
    assert (src != dst).all()
    np.testing.assert_array_equal(src[0::2], dst[1::2])  # both directions, one after the other
    np.testing.assert_array_equal(dst[0::2], src[1::2])
    degree = np.sort(np.bincount(dst, minlength=4096))[::-1]
    assert degree[:41].sum() > 0.15 * 80_000  # of the edges, at 1 % of the nodes
    assert np.bincount(label).tolist() == [512] * 8
    assert (label[src] == label[dst]).mean() > 1.5 / 8


def test_blocks_are_part_of_the_definition(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_static, "LINK_BLOCK", 500)
    synthesize_rmat(tmp_path / "g.h5", 256, 3000, 1, width=0)
    with h5py.File(tmp_path / "g.h5") as file:
        assert len(file["edges/node.to.node/src"]) == 3000
        assert "feat" not in file["nodes/node"]
        assert file["edges/node.to.node/src"][:].max() < 256


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"num_nodes": 100}, "a power of two of nodes"),
        ({"num_nodes": 1}, "a power of two of nodes"),
        ({"num_edges": 7}, "even number of edges"),
        ({"width": -1}, "at least 0"),
        ({"quarters": (0.5, 0.5, 0.5, -0.5)}, "four probabilities"),
        ({"quarters": (0.5, 0.5)}, "four probabilities"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path, sizes, problem):
    with pytest.raises(ValueError, match=problem):
        synthesize_rmat(tmp_path / "g.h5", **{"num_nodes": 64, "num_edges": 100, "seed": 1, **sizes})
    assert not (tmp_path / "g.h5").exists()
