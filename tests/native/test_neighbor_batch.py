"""Whole batches in one call against hop-by-hop calls."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from test_neighbors import KEY, MODES_AND_WEIGHTS, random_graph

from hpcgnn.native import Relabel, sample_layers, sample_neighbors

pytestmark = pytest.mark.serial


def hop_by_hop(indptr, src, seeds, identity, fanouts, relabel, mode, weight):
    relabel.begin()
    relabel.add(seeds)
    layers = []
    for hop, fanout in enumerate(fanouts):
        offsets, positions = sample_neighbors(
            indptr, relabel.unique.copy(), identity, fanout, replace(KEY, hop=KEY.hop + hop),
            mode=mode, weight=weight, source_identity=identity[src],
        )  # fmt: skip
        layers.append((offsets, relabel.add(src[positions]), positions))
    return layers


@pytest.mark.parametrize(("mode", "weighted"), MODES_AND_WEIGHTS)
@pytest.mark.parametrize("fanouts", [[], [15, 10, 5], [3, -1], [70, 2]])
def test_layers_equal_hop_by_hop_calls(fanouts, mode, weighted):
    rng = np.random.default_rng(11)
    indptr, src, identity, weight = random_graph(rng, num_nodes=3000)
    weight = weight if weighted else None
    reference = Relabel(3000)
    for dense, threads in itertools.product([False, True], [1, 3]):
        relabel = Relabel(3000, dense)
        for seeds in (rng.integers(0, 3000, 400), np.empty(0, np.int64), rng.integers(0, 3000, 30)):
            expected = hop_by_hop(indptr, src, seeds, identity, fanouts, reference, mode, weight)
            options = {"mode": mode, "weight": weight, "threads": threads}
            layers = sample_layers(indptr, src, seeds, identity, fanouts, KEY, relabel, with_positions=True, **options)
            assert [[a.dtype for a in layer] for layer in layers] == [[np.int64, np.int32, np.int64]] * len(fanouts)
            for mine, theirs in zip(layers, expected, strict=True):
                assert all(map(np.array_equal, mine, theirs))
            assert np.array_equal(relabel.unique, reference.unique)
            bare = sample_layers(indptr, src, seeds, identity, fanouts, KEY, relabel, **options)
            for mine, theirs in zip(bare, expected, strict=True):
                assert mine[2] is None
                assert all(map(np.array_equal, mine[:2], theirs[:2]))


def test_python_threads_sample_batches_of_their_own():
    rng = np.random.default_rng(12)
    indptr, src, identity, _ = random_graph(rng, num_nodes=3000)
    seeds = [rng.choice(3000, 100, replace=False) for _ in range(24)]

    def sample(numbers):
        relabel = Relabel(3000)
        return [sample_layers(indptr, src, seeds[i], identity, [5, 5], replace(KEY, step=i), relabel) for i in numbers]

    alone = sample(range(24))
    with ThreadPoolExecutor(3) as pool:
        shared = list(pool.map(sample, [range(i, 24, 3) for i in range(3)]))
    for i in range(24):
        for mine, theirs in zip(shared[i % 3][i // 3], alone[i], strict=True):
            assert all(map(np.array_equal, mine[:2], theirs[:2]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": np.array([4])}, r"seed 4 is not in \[0, 4\)"),
        ({"seeds": np.array([0, -1])}, "seed -1 is not in"),
        ({"src": np.array([0, 1, 2, 9])}, "source 9 is not in"),
        ({"relabel": Relabel(5)}, "a relabeling of n nodes"),
        ({"fanouts": [2, 0]}, "fanout must be in"),
        ({"fanouts": [1] * 16}, "random hop"),
        ({"weight": np.ones(3, np.uint32)}, "weights must be as many"),
    ],
)
def test_wrong_batches(change, message):
    given = {
        "indptr": np.arange(5), "src": np.arange(4), "seeds": np.arange(4), "identity": np.arange(4),
        "fanouts": [2, 2], "random": KEY, "relabel": Relabel(4),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        sample_layers(**given | change)
