"""Folders of IGB-Heterogeneous, with and without headers, against the graph that MLPerf's loader makes of them."""

import h5py
import numpy as np
import pytest
import torch
from convert_sources import assignments, counts, refused

from data_tools.convert import main
from data_tools.source import columns
from data_tools.source.formats import arrays
from data_tools.source.systems import igbh

pytestmark = pytest.mark.serial

WIDTH = 6
NODES = {"paper": 12, "author": 9, "institute": 3, "fos": 5, "journal": 2, "conference": 2}
EDGES = {"cites": ("paper", "paper", 20), "written_by": ("paper", "author", 25),
         "affiliated_to": ("author", "institute", 7), "topic": ("paper", "fos", 30),
         "published": ("paper", "journal", 8), "venue": ("paper", "conference", 4)}  # fmt: skip
BARE = ("paper/node_feat.npy", "author/node_feat.npy", "paper/node_label_19.npy", "paper/node_label_2K.npy")


def random_graph() -> dict[str, np.ndarray]:
    """The arrays of the files, by path; the third and the fourth citation are self-loops."""
    rng = np.random.default_rng(0)
    graph = {f"{name}/node_feat.npy": rng.random((n, WIDTH)).astype(np.float32) for name, n in NODES.items()}
    for name, (source, destination, count) in EDGES.items():
        ends = np.stack([rng.integers(0, NODES[end], count) for end in (source, destination)], axis=1)
        graph[f"{source}__{name}__{destination}/edge_index.npy"] = ends
    graph["paper__cites__paper/edge_index.npy"][2:4] = [[5, 5], [0, 0]]
    for name, classes in (("19", 19), ("2K", 2983)):
        graph[f"paper/node_label_{name}.npy"] = rng.integers(0, classes, NODES["paper"]).astype(np.float32)
    return graph


def write_folder(folder, graph, bare=()) -> None:
    for name, array in graph.items():
        path = folder / "processed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        array.tofile(path) if name in bare else np.save(path, array)


def converted(folder, **settings) -> h5py.File:
    output = folder / "graph.h5"
    arguments = assignments({"folder": folder, **settings})
    assert main(["--preset", "igbh", *arguments, "--overwrite", str(output)]) == 0
    return h5py.File(output)


def pairs(file: h5py.File, relation: str) -> list[tuple[int, int]]:
    group = file[f"edges/{relation}"]
    return sorted(zip(group["src"][:].tolist(), group["dst"][:].tolist(), strict=True))


@pytest.mark.parametrize("bare", [(), BARE])
def test_the_graph_is_that_of_the_benchmark(tmp_path, capsys, bare):
    graph = random_graph()
    write_folder(tmp_path, graph, bare)
    torch.save(torch.tensor([3, 7, 0]), tmp_path / "processed" / "train_idx.pt")
    torch.save(torch.tensor([11, 1]), tmp_path / "processed" / "val_idx.pt")
    np.save(tmp_path / "processed" / "paper" / "paper_id_index_mapping.npy", np.arange(3))
    with converted(tmp_path) as file:
        for name, group in file["nodes"].items():
            assert np.array_equal(group["feat"][:], graph[f"{name}/node_feat.npy"])
        paper = file["nodes/paper"]
        assert paper["label"][:].tolist() == graph["paper/node_label_2K.npy"].astype(int).tolist()
        assert paper["split"][:].tolist() == [0, 1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1]
        for name, (source, destination, _) in EDGES.items():
            ends = graph[f"{source}__{name}__{destination}/edge_index.npy"]
            if name == "cites":
                ends = ends[ends[:, 0] != ends[:, 1]]
                ends = np.concatenate([ends, ends[:, ::-1], np.arange(NODES["paper"])[:, None].repeat(2, 1)])
            assert pairs(file, f"{source}.{name}.{destination}") == sorted(map(tuple, ends.tolist()))
            if name != "cites":
                backward = ends[:, ::-1].tolist()
                assert pairs(file, f"{destination}.rev_{name}.{source}") == sorted(map(tuple, backward))
        assert len(file["edges"]) == 11
    printed = capsys.readouterr().out
    assert "paper.cites.paper: 10 self-loops added, so that every paper has one" in printed
    unread = "files that are not read: paper/node_label_19.npy, paper/paper_id_index_mapping.npy\n"
    assert unread in printed


def test_labels_and_split_of_the_loader(tmp_path, capsys, monkeypatch):
    """Of the size full the first papers alone have a label; the loader splits them in order of rows."""
    graph = random_graph()
    write_folder(tmp_path, graph, BARE)
    monkeypatch.setattr(igbh, "FULL_PAPERS", NODES["paper"])
    monkeypatch.setattr(igbh, "LABELED", {"19": 11, "2983": 8})
    with converted(tmp_path, classes=19) as file:
        labels = graph["paper/node_label_19.npy"].astype(int).tolist()
        assert file["nodes/paper/label"][:].tolist() == [*labels[:11], -1]
        assert file["nodes/paper/split"][:].tolist() == [0] * 6 + [1] * 2 + [2] * 3 + [-1]
    assert "split in order of rows, as IGB's loader does: 6 train, 2 val, 3 test" in capsys.readouterr().out


def test_journals_and_conferences_may_be_missing(tmp_path):
    graph = {name: array for name, array in random_graph().items() if "journal" not in name and "conf" not in name}
    write_folder(tmp_path, graph)
    with converted(tmp_path) as file:
        assert list(counts(file))[:4] == ["author", "fos", "institute", "paper"]
        assert len(file["edges"]) == 7


def test_features_are_read_in_slabs(tmp_path, monkeypatch):
    graph, pieces, parse = random_graph(), [], columns.parse_numbers
    write_folder(tmp_path, graph, BARE)
    monkeypatch.setattr(arrays, "SLAB_BYTES", 3 * WIDTH * 4)
    monkeypatch.setattr(columns, "parse_numbers", lambda raw, *rest: pieces.append(raw.num_rows) or parse(raw, *rest))
    with converted(tmp_path) as file:
        assert np.array_equal(file["nodes/paper/feat"][:], graph["paper/node_feat.npy"])
    assert pieces[: NODES["paper"] // 3] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("paper__topic__fos/edge_index.npy", np.zeros((2, 9), np.int64), "shape (2, 9), expected [E, 2]"),
        (
            "paper__topic__fos/edge_index.npy",
            np.full((9, 2), 5),
            "row 1: no node 5 of type fos, whose 5 nodes are numbered by rows",
        ),
        ("author/node_feat.npy", None, "author/node_feat.npy: no such file"),
        ("paper/node_label_2K.npy", np.zeros(13, np.float32), "files with rows that belong together differ in length"),
    ],
)
def test_other_files_are_refused(tmp_path, capsys, name, content, message):
    write_folder(tmp_path, random_graph())
    (tmp_path / "processed" / name).unlink()
    if content is not None:
        np.save(tmp_path / "processed" / name, content)
    assert message in refused(tmp_path, capsys, "--preset", "igbh", *assignments({"folder": tmp_path}))


def test_a_file_without_header_that_is_cut_short_is_refused(tmp_path, capsys):
    graph = random_graph()
    write_folder(tmp_path, graph, BARE)
    graph["author/node_feat.npy"].ravel()[:-1].tofile(tmp_path / "processed" / "author" / "node_feat.npy")
    message = refused(tmp_path, capsys, "--preset", "igbh", *assignments({"folder": tmp_path}))
    assert "node_feat.npy: not a readable raw file (212 bytes are no rows of 6 float32" in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "--preset igbh: give --set folder=FOLDER"),
        ({"folder": "x", "classes": 20}, "--set classes: '20' is not one of 19, 2983"),
        ({"folder": "x", "size": "tiny"}, "--set: 'size' is not one of folder, classes"),
    ],
)
def test_other_settings_are_refused(tmp_path, capsys, settings, message):
    assert message in refused(tmp_path, capsys, "--preset", "igbh", *assignments(settings))
