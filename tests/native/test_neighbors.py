"""Static neighbor sampling against a plain reference of its random numbers and algorithms, and in distribution."""

import ctypes
import itertools

import numpy as np
import pytest

from hpcgnn.bench.neighbors import power_law_graph
from hpcgnn.native import Random, Stream, sample_neighbors

pytestmark = pytest.mark.serial

KEY = Random(seed=(1 << 50) + 77, stream=Stream.NEIGHBOR, step=5, epoch=3, hop=1, relation=9)
LOW = 0xFFFFFFFF

# -------------------------------------------------------------------------------------------- reference: random numbers


def philox(random: Random, identity: int, block: int, attempt: int = 0) -> list[int]:
    """The four words of a block, by the layout that random.h documents."""
    c = [identity & LOW, identity >> 32 & 0xFFFF | block << 16, random.step,
         random.epoch | random.hop << 16 | random.relation << 20]  # fmt: skip
    k = [random.seed & LOW, ((random.seed >> 32) << 8 | random.stream) + attempt * 0x9E3779B9 & LOW]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & LOW, a >> 32 ^ c[3] ^ k[1], a & LOW]
        k = [k[0] + 0x9E3779B9 & LOW, k[1] + 0xBB67AE85 & LOW]
    return c


def below(random: Random, identity: int, slot: int, bound: int, words: int = 1) -> int:
    """An unbiased integer below the bound from `words` words of 32 bits, the most significant first."""
    per_block, width = 4 // words, 32 * words
    for attempt in itertools.count():
        block = philox(random, identity, slot // per_block, attempt)
        first = words * (slot % per_block)
        value = sum(word << 32 * (words - 1 - i) for i, word in enumerate(block[first : first + words]))
        if value * bound % (1 << width) >= (1 << width) % bound:
            return value * bound >> width


# ------------------------------------------------------------------------------------------------- reference: samplers


def reference_row(weights, identity, fanout, mode, sources, weighted):
    """Ranks chosen of a row with these weights and source identities."""
    degree, usable = len(weights), [i for i in range(len(weights)) if weights[i]]
    if mode == "replace":
        if not weighted:
            return [below(KEY, identity, slot, degree) for slot in range(fanout)] if degree else []
        total = int(weights.sum())
        targets = [below(KEY, identity, slot, total, words=2) for slot in range(fanout)] if total else []
        return [int(np.searchsorted(np.cumsum(weights), target, side="right")) for target in targets]
    if degree <= fanout:
        return usable
    if mode == "labor":
        keys = [philox(KEY, int(source), 0)[:2] for source in sources]
        return sorted(sorted(range(degree), key=lambda i: (keys[i], i))[:fanout])
    return reference_distinct(weights, usable, identity, fanout, weighted)


def reference_distinct(weights, usable, identity, fanout, weighted):
    chosen, left, degree = [], weights.astype(object), len(weights)
    for slot in range(min(fanout, len(usable))):
        if weighted:
            target = below(KEY, identity, slot, int(left.sum()), words=2)
            choice = next(i for i in range(degree) if left[: i + 1].sum() > target)
            left[choice] = 0
        else:
            choice = below(KEY, identity, slot, degree - fanout + slot + 1)
            choice = degree - fanout + slot if choice in chosen else choice
        chosen.append(choice)
    return sorted(chosen)


def random_graph(rng, num_nodes=300, mean_degree=12):
    """(indptr, src, identity, weight): a skewed CSC with isolated nodes, weights with zeros and rows of zeros alone."""
    indptr, src = power_law_graph(num_nodes, num_nodes * mean_degree, 0.7, int(rng.integers(1 << 30)))
    weight = rng.integers(0, 1 << 32, len(src)).astype(np.uint32)
    weight[rng.random(len(src)) < 0.3] = 0
    weight[indptr[5] : indptr[9]] = 0
    return indptr, src, rng.integers(0, 1 << 48, num_nodes), weight


MODES_AND_WEIGHTS = [("uniform", False), ("uniform", True), ("replace", False), ("replace", True), ("labor", False)]


@pytest.mark.parametrize(("mode", "weighted"), MODES_AND_WEIGHTS)
@pytest.mark.parametrize("fanout", [1, 4, 15, 70])
def test_equals_reference(fanout, mode, weighted):
    rng = np.random.default_rng(fanout)
    indptr, src, identity, weight = random_graph(rng, num_nodes=120)
    nodes, of_source = rng.permutation(120)[:100], identity[src]
    options = {"mode": mode, "weight": weight if weighted else None, "source_identity": of_source}
    offsets, positions = sample_neighbors(indptr, nodes, identity, fanout, KEY, **options)
    assert offsets.dtype == positions.dtype == np.int64
    for i, node in enumerate(nodes):
        row = slice(indptr[node], indptr[node + 1])
        weights = weight[row] if weighted else np.ones(row.stop - row.start, np.int64)
        weights = weights.astype(np.int64)
        ranks = reference_row(weights, int(identity[node]), fanout, mode, of_source[row], weighted)
        assert (positions[offsets[i] : offsets[i + 1]] - indptr[node]).tolist() == ranks


def test_rejected_words_are_drawn_again():
    """With rows of 2^31 + 1 to 2^31 + 3 entries about half of the words are rejected; the rows overlap in nothing."""
    degree = (1 << 31) + 1 + np.arange(200) % 3
    indptr, identity = np.concatenate([[0], degree.cumsum()]), np.arange(200) << 40
    offsets, positions = sample_neighbors(indptr, np.arange(200), identity, 3, KEY)
    repeated, again = sample_neighbors(indptr, np.arange(200), identity, 3, KEY, mode="replace")
    assert offsets.tolist() == repeated.tolist() == list(range(0, 601, 3))
    for i in range(200):
        mine = [below(KEY, int(identity[i]), slot, int(degree[i])) for slot in range(3)]
        assert (again[3 * i : 3 * i + 3] - indptr[i]).tolist() == mine
        mine = [below(KEY, int(identity[i]), slot, int(degree[i]) - 2 + slot) for slot in range(3)]
        assert (positions[3 * i : 3 * i + 3] - indptr[i]).tolist() == sorted(mine)


@pytest.mark.parametrize(("mode", "weighted"), MODES_AND_WEIGHTS)
@pytest.mark.parametrize("fanout", [-1, 3, 10, 100])
def test_rows_are_independent_of_threads_and_company(fanout, mode, weighted):
    rng = np.random.default_rng(7)
    indptr, src, identity, weight = random_graph(rng, num_nodes=2000)
    options = {"mode": mode, "weight": weight if weighted else None, "source_identity": identity[src]}
    nodes = rng.integers(0, 2000, 1500)
    offsets, positions = sample_neighbors(indptr, nodes, identity, fanout, KEY, **options)
    threaded = sample_neighbors(indptr, nodes, identity, fanout, KEY, threads=3, **options)
    assert all(map(np.array_equal, threaded, (offsets, positions)))
    rows = {int(node): positions[offsets[i] : offsets[i + 1]] for i, node in enumerate(nodes)}
    for few in np.split(rng.permutation(nodes)[:60], [1, 6, 25]):
        begin, mine = sample_neighbors(indptr, few, identity, fanout, KEY, **options)
        for i, node in enumerate(few):
            assert np.array_equal(mine[begin[i] : begin[i + 1]], rows[int(node)])


@pytest.mark.parametrize(("mode", "weighted"), [*MODES_AND_WEIGHTS, ("full", False), ("full", True)])
def test_full_takes_every_entry_that_may_be_drawn(mode, weighted):
    indptr, src, identity, weight = random_graph(np.random.default_rng(3))
    nodes, usable = np.arange(300), weight > 0 if weighted else np.ones(len(src), bool)
    offsets, positions = sample_neighbors(
        indptr, nodes, identity, -1, KEY, mode=mode, weight=weight if weighted else None, source_identity=identity[src]
    )
    assert np.array_equal(positions, np.flatnonzero(usable))
    assert np.array_equal(offsets, np.concatenate([[0], np.cumsum(usable)])[indptr])


def test_no_nodes_and_no_entries():
    none, identity = np.empty(0, np.int64), np.arange(3)
    offsets, positions = sample_neighbors(np.zeros(4, np.int64), none, identity, 3, KEY)
    assert (offsets.tolist(), positions.tolist()) == ([0], [])
    for mode in ("uniform", "replace"):
        offsets, positions = sample_neighbors(np.zeros(4, np.int64), identity, identity, 3, KEY, mode=mode)
        assert (offsets.tolist(), positions.tolist()) == ([0] * 4, [])


# ------------------------------------------------------------------------------------------------------- distributions


def assert_chi_square(observed, expected, freedom, scale=1.0):
    chi_square = float(((observed - expected) ** 2 / expected).sum()) * scale
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 5
    assert chi_square > freedom - 5 * np.sqrt(2 * freedom) - 5


def draw(trials, weights, fanout, mode, weighted):
    """Ranks [trials, fanout] chosen by so many rows alike; a source of its own for every entry."""
    degree, rows = len(weights), np.arange(trials)
    weight = np.tile(weights, trials).astype(np.uint32) if weighted else None
    options = {"mode": mode, "weight": weight, "source_identity": np.arange(trials * degree) << 7}
    indptr = np.arange(trials + 1) * degree
    offsets, positions = sample_neighbors(indptr, rows, rows + (1 << 33), fanout, KEY, **options)
    assert (np.diff(offsets) == fanout).all()
    return (positions.reshape(trials, fanout) - indptr[:-1, None]).astype(np.int64)


@pytest.mark.parametrize("mode", ["uniform", "labor"])
@pytest.mark.parametrize(("degree", "fanout"), [(2, 1), (3, 2), (5, 3), (7, 3), (6, 5), (8, 4)])
def test_all_subsets_are_equally_likely(degree, fanout, mode):
    trials = 40_000
    codes = (1 << draw(trials, np.ones(degree), fanout, mode, False)).sum(axis=1)
    subsets = [sum(1 << i for i in subset) for subset in itertools.combinations(range(degree), fanout)]
    observed = np.bincount(codes, minlength=1 << degree)[subsets]
    assert observed.sum() == trials
    assert_chi_square(observed, trials / len(subsets), len(subsets) - 1)


@pytest.mark.parametrize("mode", ["uniform", "labor"])
@pytest.mark.parametrize(("degree", "fanout"), [(11, 10), (40, 10), (16, 15), (100, 15), (71, 70), (200, 70)])
def test_all_entries_are_equally_likely(degree, fanout, mode):
    trials = 5_000
    observed = np.bincount(draw(trials, np.ones(degree), fanout, mode, False).ravel(), minlength=degree)
    # Entries of one trial are correlated: the variance of a count is trials * f/d * (1 - f/d).
    scale = (degree - 1) / degree / (1 - fanout / degree)
    assert_chi_square(observed, trials * fanout / degree, degree - 1, scale)


@pytest.mark.parametrize("weights", [[1, 1], [3, 1, 2], [0, 5, 1, 0, 2], [1, (1 << 32) - 1, 1 << 31], [1] * 17])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fanout", [1, 3, 20])
def test_draws_with_replacement_follow_the_weights(fanout, weighted, weights):
    trials, shares = 10_000, np.array(weights, float) if weighted else np.ones(len(weights))
    ranks = draw(trials, np.array(weights), fanout, "replace", weighted)
    observed = np.bincount(ranks.ravel(), minlength=len(weights))
    drawable = shares / shares.sum() * trials * fanout > 1
    assert observed[shares == 0].sum() == 0
    expected = (shares / shares.sum() * trials * fanout)[drawable]
    assert_chi_square(observed[drawable], expected, drawable.sum() - 1)


@pytest.mark.parametrize(
    ("weights", "fanout"),
    [
        *itertools.product([[1, 1, 1], [3, 1, 2]], [1, 2]),
        *itertools.product([[1, 2, 3, 4, 5], [0, 5, 1, 0, 2, 9]], [1, 2, 3]),
        ([1 << 31, 1 << 31, 1 << 30], 2),
    ],
)
def test_weighted_draws_without_replacement_are_successive(weights, fanout):
    trials, expected = 40_000, {}
    for order in itertools.permutations(range(len(weights)), fanout):
        left, chance = sum(weights), 1.0
        for i in order:
            chance *= weights[i] / left if left else 0.0
            left -= weights[i]
        code = sum(1 << i for i in order)
        expected[code] = expected.get(code, 0.0) + chance * trials
    codes = (1 << draw(trials, np.array(weights), fanout, "uniform", True)).sum(axis=1)
    possible = sorted(code for code, chance in expected.items() if chance > 0)
    observed = np.bincount(codes, minlength=1 << len(weights))[possible]
    assert observed.sum() == trials
    assert_chi_square(observed, np.array([expected[code] for code in possible]), len(possible) - 1)


def test_labor_shares_neighbors():
    """Nodes with the same neighbors choose the same; in all, fewer different sources than uniform draws take."""
    rng = np.random.default_rng(8)
    sources = rng.choice(1 << 40, 60, replace=False)
    indptr, of_source = np.arange(401) * 60, np.tile(sources, 400)
    _, positions = sample_neighbors(
        indptr, np.arange(400), np.arange(400), 7, KEY, mode="labor", source_identity=of_source
    )
    assert len(np.unique(of_source[positions])) == 7
    indptr, src = power_law_graph(2000, 40_000, 0.5, 1)
    nodes, identity, found = np.arange(500), np.arange(2000), {}
    for mode in ("uniform", "labor"):
        offsets, positions = sample_neighbors(indptr, nodes, identity, 10, KEY, mode=mode, source_identity=src)
        found[mode] = (int(offsets[-1]), len(np.unique(src[positions])))
    assert found["labor"][0] == found["uniform"][0]
    assert found["labor"][1] < 0.9 * found["uniform"][1]


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fanout": 0}, "fanout must be in"),
        ({"fanout": -2}, "fanout must be in"),
        ({"fanout": (1 << 16) + 1}, "fanout must be in"),
        ({"mode": "nearest"}, "mode must be one of"),
        ({"weight": np.ones(6)}, "weights must be uint32"),
        ({"weight": np.ones(5, np.uint32)}, "as many as the CSC has entries, 6"),
        ({"mode": "labor"}, "needs source_identity"),
        ({"mode": "labor", "source_identity": np.zeros(5, np.int64)}, "must have 6 entries"),
        ({"mode": "labor", "weight": np.ones(6, np.uint32)}, "labor takes no weights"),
        ({"nodes": np.array([0, 3])}, r"node 3 at position 1 is not in \[0, 3\)"),
        ({"nodes": np.array([-1, 0])}, "node -1 at position 0"),
    ],
)
def test_wrong_arguments(change, message):
    given = {
        "indptr": np.array([0, 2, 4, 6]),
        "nodes": np.arange(3),
        "identity": np.arange(3),
        "fanout": 2,
        "random": KEY,
    }
    with pytest.raises(ValueError, match=message):
        sample_neighbors(**given | change)


# ----------------------------------------------------------------------------------------------------------------- CUDA


def pointer(array):
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize(("mode", "weighted"), MODES_AND_WEIGHTS)
@pytest.mark.parametrize("fanout", [-1, 1, 10, 100])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_device_equals_the_cpu(device, size, fanout, mode, weighted):
    rng = np.random.default_rng(14)
    indptr, src, identity, weight = random_graph(rng, num_nodes=5000)
    nodes, sources, weight = rng.integers(0, 5000, size), identity[src], weight if weighted else None
    expected = sample_neighbors(indptr, nodes, identity, fanout, KEY, mode=mode, weight=weight, source_identity=sources)
    there, options = device.put_all(indptr, nodes, identity), {"mode": mode, "weight": device.put(weight)}
    with device:
        found = sample_neighbors(*there, fanout, KEY, source_identity=device.put(sources), **options)
    device.assert_same(found, expected)


@pytest.mark.parametrize(("mode", "weighted"), MODES_AND_WEIGHTS)
def test_device_draws_for_several_relations_as_the_cpu(device, mode, weighted):
    rng, fanouts = np.random.default_rng(15), [3, 0, -1, 100, 10]
    indptr, src, identity, weight = random_graph(rng, num_nodes=500)
    nodes, relation = rng.integers(0, 500, 1000), np.sort(rng.integers(0, 5, 1000)).astype(np.int32)
    sources, weight = identity[src], weight if weighted else None
    expected = sample_neighbors(
        indptr, nodes, identity, fanouts, KEY, mode=mode, weight=weight, source_identity=sources, relation=relation
    )
    there, options = device.put_all(indptr, nodes, identity), {"mode": mode, "weight": device.put(weight)}
    with device:
        options |= {"source_identity": device.put(sources), "relation": device.put(relation)}
        device.assert_same(sample_neighbors(*there, fanouts, KEY, **options), expected)
