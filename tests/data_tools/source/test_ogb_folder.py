"""Folders of the Open Graph Benchmark: csv and binary form, one type and several, nodes and links."""

import gzip

import numpy as np
import pytest
import torch
from convert_sources import assignments, contents, refused

from data_tools.convert import main

pytestmark = pytest.mark.serial

SPLIT = {"train": [0, 2, 3], "valid": [1], "test": [5, 4]}
WANTED = [0, 1, 0, 0, 2, 2]


def write(path, array) -> None:
    """A csv.gz without a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.asarray(array)
    with gzip.open(path, "wt") as file:
        for row in array.reshape(len(array), -1).tolist():
            file.write(",".join(map(str, row)) + "\n")


def random_graph() -> dict[str, np.ndarray]:
    """Six nodes, nine edges."""
    rng = np.random.default_rng(0)
    return {
        "edges": rng.integers(0, 6, (9, 2)),
        "feat": rng.standard_normal((6, 3)).astype(np.float32),
        "label": np.array([[2.0], [np.nan], [0], [1], [1], [0]]),
        "year": rng.integers(1990, 2020, (6, 1)),
        "weight": rng.random((9, 1)).astype(np.float32),
    }


def write_csv(folder, graph) -> None:
    write(folder / "raw" / "edge.csv.gz", graph["edges"])
    write(folder / "raw" / "num-node-list.csv.gz", [6])
    write(folder / "raw" / "num-edge-list.csv.gz", [9])
    write(folder / "raw" / "node-feat.csv.gz", graph["feat"])
    write(folder / "raw" / "node-label.csv.gz", graph["label"])
    write(folder / "raw" / "node_year.csv.gz", graph["year"])
    write(folder / "raw" / "edge_weight.csv.gz", graph["weight"])


def write_binary(folder, graph) -> None:
    (folder / "raw").mkdir(parents=True)
    counts = {"num_nodes_list": np.array([6]), "num_edges_list": np.array([9])}
    nodes = {"node_feat": graph["feat"], "node_year": graph["year"]}
    edges = {"edge_index": graph["edges"].T, "edge_weight": graph["weight"]}
    np.savez(folder / "raw" / "data.npz", **counts, **nodes, **edges)
    np.savez(folder / "raw" / "node-label.npz", node_label=graph["label"])


def write_split(folder, name="time") -> None:
    for part, rows in SPLIT.items():
        write(folder / "split" / name / f"{part}.csv.gz", rows)


def converted(folder, preset, **sources) -> dict:
    """What the graph file of a folder has."""
    output = folder.with_name(f"{folder.name}.h5")
    assert main(["--preset", preset, *assignments({"folder": folder, **sources}), str(output)]) == 0
    return contents(output)


@pytest.mark.parametrize("write_raw", [write_csv, write_binary])
def test_nodes_of_one_type(tmp_path, write_raw):
    graph = random_graph()
    write_raw(tmp_path / "ogb", graph)
    write_split(tmp_path / "ogb")
    found = converted(tmp_path / "ogb", "ogb-nodeprop")
    ends = [found[f"edges/node.to.node/{end}"]["values"][1] for end in ("src", "dst")]
    assert np.array_equal(np.transpose(ends), graph["edges"])
    assert found["edges/node.to.node/weight"]["values"] == ("<f4", graph["weight"][:, 0].tolist())
    assert found["nodes/node/feat"]["values"] == ("<f4", graph["feat"].tolist())
    assert found["nodes/node/label"]["values"] == ("<i8", [2, -1, 0, 1, 1, 0])
    assert found["nodes/node/year"]["values"] == ("<i8", graph["year"][:, 0].tolist())
    assert found["nodes/node/split"]["values"] == ("|i1", WANTED)


def test_both_directions(tmp_path):
    graph = random_graph()
    write_csv(tmp_path / "ogb", graph)
    write_split(tmp_path / "ogb")
    found = converted(tmp_path / "ogb", "ogb-nodeprop", split="time", undirected="true")
    loops = int((graph["edges"][:, 0] == graph["edges"][:, 1]).sum())
    assert found["edges/node.to.node"]["num_edges"] == 2 * 9 - loops


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("ogbn_products", True), ("products", True), ("ogbn_proteins_pyg", True), ("ogbl_ppa", True),
        ("ppassoc", True), ("ogbl-collab", True), ("ogbl_ddi_dgl", True), ("ogbn_arxiv", False), ("mag", False),
        ("papers100M-bin", False), ("ogbl_citation2", False), ("ogbl_vessel", False), ("mine", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("preset", ["ogb-node", "ogb-nodeprop"])
def test_reverses_are_added_where_the_loader_of_ogb_adds_them(tmp_path, capsys, name, both, preset):
    graph, folder = random_graph(), tmp_path / name
    write_csv(folder, graph)
    write_split(folder)
    loops = int((graph["edges"][:, 0] == graph["edges"][:, 1]).sum())
    found = converted(folder, preset, split="time")
    assert found["edges/node.to.node"]["num_edges"] == (2 * 9 - loops if both else 9)
    said = capsys.readouterr().out
    assert (f"{name}: both directions of every edge, as OGB's loader has them" in said) == bool(both)
    assert (f"{name}: not the name of a set of OGB, so edges are stored in one direction" in said) == (both is None)
    folder.with_name(f"{name}.h5").unlink()
    asked = converted(folder, preset, split="time", undirected="false" if both else "true")
    assert asked["edges/node.to.node"]["num_edges"] == (9 if both else 2 * 9 - loops)


def test_reverses_of_a_set_of_links(tmp_path):
    """They are in the set of the link itself."""
    write_csv(tmp_path / "ogbl_collab", random_graph())
    folder = tmp_path / "ogbl_collab" / "split" / "time"
    folder.mkdir(parents=True)
    for name, row in zip(SPLIT, [[0, 1], [1, 2], [2, 3]], strict=True):
        torch.save({"edge": torch.tensor([row])}, folder / f"{name}.pt")
    found = converted(tmp_path / "ogbl_collab", "ogb-linkprop")
    columns = [found[f"edges/node.to.node/{name}"]["values"][1] for name in ("src", "dst", "split")]
    assert columns == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2], [0, 0, 1, 1, 2, 2]]


def test_several_types(tmp_path):
    graph = random_graph()
    raw = tmp_path / "ogb" / "raw"
    write(raw / "num-node-dict.csv.gz", [["author", "paper"], ["4", "6"]])
    write(raw / "triplet-type-list.csv.gz", [["author", "writes", "paper"], ["paper", "cites", "paper"]])
    writes = np.array([[0, 5], [3, 0], [2, 2]])
    write(raw / "relations" / "author___writes___paper" / "edge.csv.gz", writes)
    write(raw / "relations" / "paper___cites___paper" / "edge.csv.gz", graph["edges"])
    write(raw / "relations" / "paper___cites___paper" / "edge_reltype.csv.gz", np.full((9, 1), 3))
    write(raw / "node-feat" / "paper" / "node-feat.csv.gz", graph["feat"])
    write(raw / "node-feat" / "paper" / "node_year.csv.gz", graph["year"])
    write(raw / "node-label" / "paper" / "node-label.csv.gz", [[0], [1], [2], [0], [1], [2]])
    write_split(tmp_path / "ogb", "time/paper")
    found = converted(tmp_path / "ogb", "ogb-nodeprop")
    assert found["nodes/author"] == {"num_nodes": 4, "type_id": 0}
    assert found["edges/author.writes.paper/src"]["values"][1] == writes[:, 0].tolist()
    assert found["edges/paper.cites.paper/dst"]["values"][1] == graph["edges"][:, 1].tolist()
    assert found["edges/paper.cites.paper/reltype"]["values"][1] == [3] * 9
    assert found["nodes/paper/feat"]["values"][1] == graph["feat"].tolist()
    assert found["nodes/paper/label"]["values"][1] == [0, 1, 2, 0, 1, 2]
    assert found["nodes/paper/split"]["values"][1] == WANTED


LINKS = {
    "edge": lambda rows: {"edge": rows, "weight": np.arange(len(rows)), "edge_neg": np.zeros((7, 2), np.int64)},
    "ends": lambda rows: {"source_node": rows[:, 0], "target_node": rows[:, 1]},
    "triples": lambda rows: {"head": rows[:, 0], "relation": rows[:, 0] % 2, "tail": rows[:, 1]},
}


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("tensors", [False, True])
def test_links(tmp_path, kind, tensors):
    graph = random_graph()
    write_csv(tmp_path / "ogb", graph)
    folder = tmp_path / "ogb" / "split" / "time"
    folder.mkdir(parents=True)
    for name, rows in zip(SPLIT, np.split(graph["edges"], [5, 7]), strict=True):
        arrays = LINKS[kind](rows)
        if kind == "edge" and name == "train":
            del arrays["edge_neg"]
        torch.save(
            {key: torch.from_numpy(np.array(a)) if tensors else a for key, a in arrays.items()}, folder / f"{name}.pt"
        )
    found = converted(tmp_path / "ogb", "ogb-linkprop")
    ends = [found[f"edges/node.to.node/{end}"]["values"][1] for end in ("src", "dst")]
    assert np.array_equal(np.transpose(ends), graph["edges"])
    assert found["edges/node.to.node/split"]["values"][1] == [0] * 5 + [1] * 2 + [2] * 2
    assert found["nodes/node/feat"]["values"][1] == graph["feat"].tolist()
    if kind == "edge":
        assert found["edges/node.to.node/weight"]["values"] == ("<f4", [0, 1, 2, 3, 4, 0, 1, 0, 1])
    if kind == "triples":
        assert found["edges/node.to.node/rel"]["values"][1] == (graph["edges"][:, 0] % 2).tolist()


class Evil:
    """Pickled, it would run a command."""

    def __reduce__(self):
        return (print, ("this ran",))


def test_loading_runs_no_code(tmp_path, capsys):
    write_csv(tmp_path / "ogb", random_graph())
    (tmp_path / "ogb" / "split" / "time").mkdir(parents=True)
    torch.save({"edge": Evil()}, tmp_path / "ogb" / "split" / "time" / "train.pt")
    message = refused(tmp_path, capsys, "--preset", "ogb-linkprop", "--set", f"folder={tmp_path / 'ogb'}")
    assert "train.pt: holds objects other than tensors" in message
    assert "this ran" not in capsys.readouterr().out


def test_refused_folders(tmp_path, capsys):
    arguments = ["--preset", "ogb-nodeprop", "--set", f"folder={tmp_path / 'ogb'}"]
    assert "no folder raw/" in refused(tmp_path, capsys, *arguments)
    write_csv(tmp_path / "ogb", random_graph())
    assert "split None is not one of" in refused(tmp_path, capsys, *arguments)
    write_split(tmp_path / "ogb")
    assert "'sales' is not one of time" in refused(tmp_path, capsys, *arguments, "--set", "split=sales")
    (tmp_path / "ogb" / "raw" / "num-node-list.csv.gz").unlink()
    assert "num-node-list.csv.gz: no such file" in refused(tmp_path, capsys, *arguments)
