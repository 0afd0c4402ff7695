"""Windows over events: every event is in its windows, merged edges count them."""

import itertools
import json
from collections import Counter

import h5py
import numpy as np
import pytest
from random_graphs import write_graph

from data_tools.snapshots.command import main
from data_tools.snapshots.graph import as_rows
from data_tools.snapshots.windows import WindowOptions, read_windows, window_bounds
from data_tools.synthesize import synthesize_events
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError, class_names

pytestmark = pytest.mark.serial
OPTIONS = [
    WindowOptions(windows=7),
    WindowOptions(events=40),
    WindowOptions(events=40, stride=15),
    WindowOptions(length=12.5),
    WindowOptions(length=12.5, stride=4),
    WindowOptions(length=12.5, cumulative=True),
    WindowOptions(windows=7, cumulative=True),
]


def write_events(path, count=200, nodes=9, scale=2, seed=0):
    """Events of one node type, few nodes and many ties; columns label [E] and feat [E, 2]."""
    rng = np.random.default_rng(seed)
    time = np.sort(rng.integers(0, 150, count)) + 1000
    columns = {
        "src": rng.integers(0, nodes, count), "dst": rng.integers(0, nodes, count), "time": time,
        "label": rng.integers(-5, 6, count), "feat": rng.standard_normal((count, 2)).astype(np.float32),
    }  # fmt: skip
    with files.writing(path, files.GRAPH, kind="temporal", sources=json.dumps([])) as file:
        group = file.create_group("nodes/node")
        group.attrs["num_nodes"], group.attrs["type_id"] = nodes, 0
        group["id"], group["label"] = 100 + np.arange(nodes), np.arange(nodes)
        group = file.create_group("edges/node.to.node")
        group.attrs["num_edges"], group.attrs["relation_id"], group.attrs["time_scale"] = count, 0, scale
        for name, values in columns.items():
            group[name] = values
    return columns


def windows_by_hand(time, options, scale):
    """The events of every window, as the options say."""
    events = np.arange(len(time))
    if options.windows:
        cuts = [0, *(i * len(time) // options.windows for i in range(1, options.windows)), len(time)]
        starts = [0, *(int(np.flatnonzero(time == time[cut])[0]) for cut in cuts[1:-1]), len(time)]
        found = [events[begin:end] for begin, end in itertools.pairwise(starts)]
    else:
        place = events if options.events else (time - time[0]) / scale
        size = options.events or options.length
        begin, found = 0, []
        while True:
            found.append(events[(place >= begin) & (place < begin + size)])
            if begin + size > place[-1]:
                break
            begin += options.stride or size
    if options.cumulative:
        found = [np.arange(window[-1] + 1) for window in found]
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_windows_hold_their_events(tmp_path, options):
    columns = write_events(tmp_path / "events.h5")
    expected = windows_by_hand(columns["time"], options, 2)
    assert set(np.concatenate(expected)) == set(range(200))
    begin, end = window_bounds(columns["time"], options, 2)
    assert [list(range(a, b)) for a, b in zip(begin, end, strict=True)] == [list(window) for window in expected]

    kept = as_rows(read_windows(tmp_path / "events.h5", _with(options, merge=False)))
    rows = sorted(zip(kept.first, kept.src, kept.dst, kept.edges["label"], strict=True))
    label, src, dst = (columns[name] for name in ("label", "src", "dst"))
    assert rows == sorted((n, src[e], dst[e], label[e]) for n, window in enumerate(expected) for e in window)

    ways = {"label": "last", "feat": "mean"}
    merged = as_rows(read_windows(tmp_path / "events.h5", _with(options, reduce=ways)))
    found = {
        (n, u, v): (weight, last, mean)
        for n, u, v, weight, last, mean in zip(
            merged.first, merged.src, merged.dst, merged.edges["weight"], merged.edges["label"], merged.edges["feat"],
            strict=True,
        )
    }  # fmt: skip
    assert len(found) == len(merged.src)
    for number, window in enumerate(expected):
        count = Counter(zip(src[window], dst[window], strict=True))
        assert count == {key[1:]: value[0] for key, value in found.items() if key[0] == number}
        for u, v in count:
            those = [event for event in window if (src[event], dst[event]) == (u, v)]
            _, last, mean = found[number, u, v]
            assert last == label[those[-1]]
            assert np.allclose(mean, columns["feat"][those].mean(axis=0), atol=1e-6)


def _with(options, **changes):
    values = {name: getattr(options, name) for name in WindowOptions.__slots__}
    return WindowOptions(**{**values, **changes})


def test_windows_of_a_length_in_time_begin_at_dates(tmp_path):
    """Where the times of the events come from dates, and windows begin at whole seconds."""
    columns = write_events(tmp_path / "events.h5", scale=1)
    with h5py.File(tmp_path / "events.h5", "r+") as file:
        file["edges/node.to.node"].attrs.update({"dates": True, "zone": "Asia/Tokyo"})
    ways = ({"length": 12, "stride": 4}, {"length": 12.5}, {"windows": 7}, {"length": 12, "cumulative": True})
    found = [read_windows(tmp_path / "events.h5", WindowOptions(**way)).clock for way in ways]
    assert found == [{"first": int(columns["time"][0]), "step": 4, "zone": "Asia/Tokyo"}, {}, {}, {}]


def test_both_directions_and_node_columns(tmp_path):
    write_events(tmp_path / "events.h5")
    graph = as_rows(read_windows(tmp_path / "events.h5", WindowOptions(windows=5), both=True))
    weight = dict(zip(zip(graph.first, graph.src, graph.dst, strict=True), graph.edges["weight"], strict=True))
    assert all(weight[n, v, u] == value for (n, u, v), value in weight.items())
    assert graph.id.tolist() == list(range(100, 109))
    assert graph.nodes["label"].tolist() == list(range(9))


def test_two_types_of_nodes_are_numbered_together(tmp_path):
    synthesize_events(tmp_path / "events.h5", 500, 30, 10, 1)
    graph = read_windows(tmp_path / "events.h5", WindowOptions(windows=5))
    assert graph.num_nodes == 40
    assert graph.nodes["type"].tolist() == [0] * 30 + [1] * 10
    assert graph.src.max() < 30 <= graph.dst.min()
    assert graph.edges["weight"].sum() == 500


def write_purchases(path, buyers, items):
    """Events of two types of nodes, whose columns are given, every buyer once with every item."""
    count = len(buyers["id"]) * len(items["id"])
    ends = np.divmod(np.arange(count), len(items["id"]))
    edges = {"src": ends[0], "dst": ends[1], "time": np.arange(count)}
    return write_graph(path, {"buyer": buyers, "item": items}, {("buyer", "buys", "item"): edges})


def test_nodes_of_several_types_keep_ids_and_columns(tmp_path, capsys):
    """Ids that two types share tell their type; what only some have is not known of the others; what differs in width
    or in what its classes mean is left out, and said."""
    rng = np.random.default_rng(2)
    buyers = {"id": np.array([7, 9]), "feat": rng.standard_normal((2, 3)), "label": np.array([1, 0], np.uint8)}
    items = {"id": np.array([9, 8, 5]), "feat": rng.standard_normal((3, 3)), "price": np.array([1.5, 2, 3])}
    buyers["rank"], items["rank"] = np.zeros((2, 2)), np.zeros(3)
    write_purchases(tmp_path / "events.h5", buyers, items)
    assert main(["windows", str(tmp_path / "events.h5"), str(tmp_path / "g.h5"), "--windows", "2"]) == 0
    said = capsys.readouterr().out
    for note in ("ids are TYPE:ID", "label is of buyer, not known for", "rank is left out"):
        assert note in said
    with h5py.File(tmp_path / "g.h5") as file:
        nodes = {name: column[:] for name, column in file["nodes/node"].items()}
        assert json.loads(file["nodes/node/type"].attrs["names"]) == ["buyer", "item"]
    assert nodes["id"].tolist() == [b"buyer:7", b"buyer:9", b"item:9", b"item:8", b"item:5"]
    assert nodes["type"].tolist() == [0, 0, 1, 1, 1]
    assert np.array_equal(nodes["feat"], np.concatenate([buyers["feat"], items["feat"]]))
    assert nodes["label"].tolist() == [1, 0, -1, -1, -1]
    assert np.array_equal(nodes["price"], [np.nan, np.nan, 1.5, 2, 3], equal_nan=True)
    assert "rank" not in nodes


def test_names_of_classes_and_relations_stay(tmp_path, capsys):
    """Those of edges; of what is computed of numbers there are none."""
    words = json.dumps(["cash", "card"])
    nodes = {"buyer": {"id": np.arange(3)}, "item": {"id": np.arange(3)}}
    edges = {"src": np.arange(3), "dst": np.arange(3), "time": np.arange(3), "paid": np.array([0, 1, 1])}
    relations = {("buyer", "buys", "item"): edges, ("buyer", "returns", "item"): edges}
    write_graph(tmp_path / "g.h5", nodes, relations)
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        for group in file["edges"].values():
            group["paid"].attrs["names"] = words
    for more, expected in ((["--keep"], ["cash", "card"]), (["--reduce", "paid=sum"], [])):
        options = ["windows", tmp_path / "g.h5", tmp_path / "s.h5", "--windows", "1", "--overwrite", *more]
        assert main(list(map(str, options))) == 0
        with h5py.File(tmp_path / "s.h5") as file:
            (edges,) = file["edges"].values()
            assert class_names(edges["paid"]) == expected
            if expected:
                assert class_names(edges["rel"]) == ["buyer.buys.item", "buyer.returns.item"]


def test_ids_that_no_two_types_share_stay(tmp_path):
    write_purchases(tmp_path / "e.h5", {"id": np.array([b"u1", b"u2"])}, {"id": np.array([b"item3"])})
    made = read_windows(tmp_path / "e.h5", WindowOptions(windows=1))
    assert made.id.tolist() == [b"u1", b"u2", b"item3"]
    assert made.notes[0] == "ids are those of the source"
    write_graph(
        tmp_path / "n.h5", {"a": {"feat": np.ones((2, 1))}, "b": {"id": np.array([4])}},
        {("a", "to", "b"): {"src": np.array([1]), "dst": np.array([0]), "time": np.array([3])}},
    )  # fmt: skip
    made = read_windows(tmp_path / "n.h5", WindowOptions(windows=1))
    assert made.id.tolist() == [b"a:0", b"a:1", b"b:4"]
    assert made.nodes["feat"].tolist() == [[1], [1], [0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "exactly one of"),
        (("--windows", "3", "--length", "5"), "exactly one of"),
        (("--windows", "3", "--stride", "2"), "--stride needs"),
        (("--events", "10", "--stride", "11"), "so that no event is lost"),
        (("--events", "10", "--stride", "2.5"), "not an integer"),
        (("--windows", "3", "--reduce", "label=most"), "expected COLUMN=sum|mean|last"),
        (("--windows", "3", "--reduce", "rating=sum"), "no such column of numbers; the events have feat, label"),
    ],
)
def test_options_that_cannot_be(tmp_path, capsys, options, message):
    write_events(tmp_path / "events.h5")
    assert main(["windows", str(tmp_path / "events.h5"), str(tmp_path / "g.h5"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_graph_of_snapshots_is_not_cut_again(tmp_path):
    write_events(tmp_path / "events.h5")
    assert main(["windows", str(tmp_path / "events.h5"), str(tmp_path / "g.h5"), "--windows", "4"]) == 0
    with h5py.File(tmp_path / "g.h5") as file:
        assert file.attrs["num_snapshots"] == 4
    with pytest.raises(FileFormatError, match="expected a temporal graph"):
        read_windows(tmp_path / "g.h5", WindowOptions(windows=2))


def test_the_sources_of_the_events_are_sources(tmp_path):
    """After the graph file of the events."""
    write_events(tmp_path / "events.h5")
    source = {"name": "events.csv", "bytes": 7, "sha256": "ab"}
    with h5py.File(tmp_path / "events.h5", "r+") as file:
        file.attrs["sources"] = json.dumps([source, "by hand"])
    assert main(["windows", str(tmp_path / "events.h5"), str(tmp_path / "graph.h5"), "--windows", "7"]) == 0
    with h5py.File(tmp_path / "graph.h5") as file:
        (own, *further) = json.loads(file.attrs["sources"])
    assert (own["name"], further) == ("events.h5", [source, "by hand"])
