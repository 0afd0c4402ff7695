"""Small source files by the names that the docs use, each in the form that its preset reads."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from docs_commands import REPOSITORY

NUM_EVENTS = 400


def _text(path: Path, rows, header: str = "", separator: str = ",") -> None:
    lines = [header] * bool(header) + [separator.join(map(str, row)) for row in rows]
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt") as file:
        file.write("\n".join(lines) + "\n")


def _events(seed: int = 1, count: int = NUM_EVENTS) -> list[tuple[int, int, int]]:
    """Source (0 to 39), destination (100 to 119), increasing time."""
    rng = np.random.default_rng(seed)
    src, dst = (40 * rng.random(count) ** 2).astype(int), 100 + rng.integers(0, 20, count)
    return list(zip(src.tolist(), dst.tolist(), (1_000 * np.arange(count)).tolist(), strict=True))


def _jodie(path: Path) -> None:
    """So many events that validation has several batches of 200."""
    events = [(*event, 0, 0.5, 0.1) for event in _events(count=1_800)]
    _text(path, events, "user_id,item_id,timestamp,state_label,features")


def _tgb_links(path: Path) -> None:
    path.mkdir()
    rows = [(src, dst - 100, time, 0, 0.5, 0.1) for src, dst, time in _events()]
    _text(path / "tgbl-wiki_edgelist_v2.csv", rows, "user_id,item_id,timestamp,state_label,features")


def _tgb_labels(path: Path) -> None:
    """Labels of a year are the events of that year, as in tgbn-trade."""
    path.mkdir()
    rows = [(time // 20_000, f"c{src}", f"c{dst}", 0.1 * (1 + src % 9)) for src, dst, time in _events()]
    for name in ("edgelist", "node_labels"):
        _text(path / f"tgbn-trade_{name}.csv", rows, "year,nation,trading nation,weight")


def _tgn_ml(path: Path) -> None:
    _text(path, [(i, *event, 0, i + 1) for i, event in enumerate(_events())], ",u,i,ts,label,idx")


def _shop(path: Path) -> None:
    _text(path, [(*event, 0, 1.5, 2) for event in _events()], "user,item,time,returned,price,amount")


def _pyg(path: Path) -> None:
    torch.save({"x": torch.ones(5, 2), "y": torch.arange(5) % 2, "edge_index": torch.tensor([[0, 1], [1, 2]])}, path)


def _planetoid(path: Path) -> None:
    rng = np.random.default_rng(2)
    num, entries = 120, 600
    column = rng.integers(0, 12, entries)
    sets = np.split(rng.permutation(num), [40, 80])
    np.savez(
        path, edges=rng.integers(0, num, (300, 2)), y=rng.integers(0, 7, num), x_data=np.ones(entries, np.float32),
        x_indices=column, x_indptr=np.arange(num + 1) * 5, x_shape=np.array([num, 12]),
        train_idx=sets[0], val_idx=sets[1], test_idx=sets[2],
    )  # fmt: skip


def _archive(path: Path, texts: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def _facts(path: Path) -> None:
    rng = np.random.default_rng(3)
    texts = {}
    for name, count in (("train", 300), ("valid", 60), ("test", 60)):
        rows = rng.integers(0, 40, (count, 3)) % [40, 4, 40]
        texts[f"{name}.txt"] = "".join(f"/m/{a}\tkind{r}\t/m/{b}\n" for a, r, b in rows)
    _archive(path, texts)


def _quadruples(path: Path) -> None:
    """Facts of 16 days, with names, and questions beside them."""
    path.mkdir()
    rng = np.random.default_rng(11)
    for name, days in {"train": range(10), "valid": range(10, 13), "test": range(13, 16)}.items():
        rows = [(*(rng.integers(0, 30, 3) % [30, 3, 30]).tolist(), 24 * day, 0) for day in days for _ in range(20)]
        _text(path / f"{name}.txt", rows, separator="\t")
    _text(path / "entity2id.txt", [(f"Country {number}", number) for number in range(30)], separator="\t")
    _text(path / "relation2id.txt", [(f"kind {number}", number) for number in range(3)], separator="\t")
    _text(path.with_name("subjects.csv"), [("Country 3", "kind 1")], "src,rel")


def _contacts(path: Path) -> None:
    lines = [f"{t // 20}\t{a}\t{b}\n" for a, b, t in _events()]
    _archive(path, {"listcontacts_2009_07_15.txt": "".join(lines)})


def _lists(path: Path, per_user: int) -> None:
    rng = np.random.default_rng(per_user)
    rows = [(user, *sorted(set(rng.integers(0, 15, per_user).tolist()))) for user in range(30)]
    _text(path, rows, separator=" ")


def _triples(path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = [
        f"<http://x/{a}> <http://x/p{r}> <http://x/{b}> ." for a, r, b in rng.integers(0, 30, (200, 3)) % [30, 3, 30]
    ]
    _text(path, [(row,) for row in rows])


def _labeled(path: Path, first: int) -> None:
    rows = [(f"http://x/{entity}", f"class{entity % 2}") for entity in range(first, first + 8)]
    _text(path, rows, "person\tlabel_affiliation", "\t")


def _chickenpox(path: Path) -> None:
    rng = np.random.default_rng(5)
    content = {"edges": rng.integers(0, 12, (40, 2)).tolist(), "FX": rng.standard_normal((522, 12)).tolist()}
    with gzip.open(path, "wt") as file:
        json.dump(content, file)


def _snapshot_lists(path: Path) -> None:
    rng = np.random.default_rng(6)
    rows = [(s, *rng.integers(0, 30, 2).tolist()) for s in range(12) for _ in range(40)]
    _text(path, rows)


def _series(path: Path) -> None:
    """A long table, beside a wide one and the edges."""
    rng, towns = np.random.default_rng(10), ["Aden", "Boma", "Cork", "Deli"]
    days = [f"2024-{month:02}-{day:02}" for month in range(1, 11) for day in (1, 8, 15, 22)]
    _text(path, [(t, day, rng.integers(1, 9), "" if t == "Boma" else 0.5) for day in days for t in towns],
          "town,week,cases,rain")  # fmt: skip
    _text(path.with_name("wide.csv"), [(day, *rng.random(4)) for day in days], ",".join(["", *towns]))
    _text(path.with_name("roads.csv"), [(towns[i], towns[i - 1], i + 1) for i in range(4)], "src,dst,weight")


def _meetings(path: Path) -> None:
    _text(path, [(src % 9, dst % 9, time // 50_000) for src, dst, time in _events()], "src,dst,day")
    _text(path.with_name("people.csv"), [(person, "ab"[person % 2]) for person in range(9)], "id,kind")


def _friends(path: Path) -> None:
    _text(path, [(src % 9, dst % 9, 0.5) for src, dst, _ in _events()], "src;dst;weight", ";")
    _text(path.with_name("members.csv"), [(n, "ab"[n % 2], 20 + n, 1.7) for n in range(9)], "id;group;age;height", ";")


def _speeds(path: Path) -> None:
    values = np.random.default_rng(7).uniform(10, 70, (700, 5)).round(1)
    _text(path, values.tolist(), ",".join(f"s{sensor}" for sensor in range(5)))


def block(language: str, page: str, number: int) -> str:
    """A block of code of a page."""
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[number]


def _own_spec(path: Path) -> None:
    path.write_text(block("yaml", "own_data", 0))
    _shop(path.with_name("shop.csv"))


def _persons(path: Path) -> None:
    path.write_text(block("yaml", "own_data", 1))
    contacts = [(src, dst - 60, time) for src, dst, time in _events()]
    _text(path.with_name("contacts.csv"), contacts, "src,dst,time")
    persons = [(node, ("red", "blue", "")[node % 3], 250_000) for node in range(60)]
    _text(path.with_name("persons.csv"), persons, "person,class,until")
    _text(path.with_name("unknown.csv"), [(2,), (5,), (59,)], "node")


def _school(path: Path) -> None:
    path.write_text(block("yaml", "measurements/temporal", 0))
    contacts = [(time, src, dst - 60, "ab"[src % 2], "ab"[dst % 2]) for src, dst, time in _events()]
    _text(path.with_name("school.tsv"), contacts, separator="\t")
    _text(path.with_name("pupils.csv"), [(node, "ab"[node % 2]) for node in range(60)], "person,class")


def _years_of_papers(path: Path) -> None:
    path.write_text(block("yaml", "measurements/temporal", 1))
    citations = [(src, dst - 60, time) for src, dst, time in _events()]
    _text(path.with_name("citations.csv"), citations, "src,dst,time")
    papers = [(node, node % 3, 6_000 * node) for node in range(60)]
    _text(path.with_name("papers.csv"), papers, "paper,class,time")


def _chunks(path: Path) -> None:
    rng = np.random.default_rng(8)
    path.mkdir()
    (path / "metadata.yaml").write_text(block("yaml", "own_data", 2))
    nodes = [(7 * node, *rng.standard_normal(2).round(3), node % 3) for node in range(90)]
    _text(path / "nodes.csv", nodes, "id,x,y,topic")
    _text(path / "cites.csv", (7 * rng.integers(0, 90, (300, 2))).tolist(), "src,dst")


def _years(path: Path) -> None:
    """Events in files of two years."""
    columns = np.array(_events()).T
    for year, half in zip((2023, 2024), np.array_split(columns, 2, axis=1), strict=True):
        file = path / f"year={year}" / "part-0.parquet"
        file.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pa.table(dict(zip(("src", "dst", "time"), half, strict=True))), file)


def _pairs(path: Path) -> None:
    _text(path, [event[:2] for event in _events()[:5]], "src,dst")


def _negatives(path: Path) -> None:
    """For every event of a built-in graph of 4,000."""
    rng = np.random.default_rng(9)
    np.savez(path, row=np.arange(4_000), negatives=1000 + 3 * rng.integers(0, 10, (4_000, 3)))


def _mag(path: Path) -> None:
    """Authors who write papers, in the form of OGB."""
    raw, split = path / "raw", path / "split" / "time" / "paper"
    folders = [raw / "relations" / "author___writes___paper", raw / "node-feat" / "paper", raw / "node-label" / "paper"]
    for folder in (*folders, split):
        folder.mkdir(parents=True)
    _text(raw / "num-node-dict.csv.gz", [(3, 4)], "author,paper")
    _text(raw / "triplet-type-list.csv.gz", [("author", "writes", "paper")])
    _text(folders[0] / "edge.csv.gz", [(0, 1), (2, 3), (1, 0)])
    _text(folders[1] / "node-feat.csv.gz", [(0.5, 1), (0, 1), (2, 0), (1, 1)])
    _text(folders[2] / "node-label.csv.gz", [(0,), (1,), (1,), (0,)])
    for name, row in (("train", 0), ("valid", 1), ("test", 2)):
        _text(split / f"{name}.csv.gz", [(row,)])


def _igbh(path: Path) -> None:
    """IGB-Heterogeneous without journals and conferences."""
    counts = {"paper": 8, "author": 9, "institute": 3, "fos": 5}
    relations = {"cites": ("paper", "paper"), "written_by": ("paper", "author"),
                 "affiliated_to": ("author", "institute"), "topic": ("paper", "fos")}  # fmt: skip
    rng = np.random.default_rng(11)
    for name, count in counts.items():
        (path / "processed" / name).mkdir(parents=True)
        np.save(path / "processed" / name / "node_feat.npy", rng.random((count, 4), np.float32))
    np.save(path / "processed" / "paper" / "node_label_2K.npy", rng.integers(0, 3, 8).astype(np.float32))
    for name, ends in relations.items():
        (folder := path / "processed" / f"{ends[0]}__{name}__{ends[1]}").mkdir()
        np.save(folder / "edge_index.npy", np.stack([rng.integers(0, counts[end], 12) for end in ends], axis=1))


def _collab(path: Path) -> None:
    raw, split = path / "raw", path / "split" / "time"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    _text(raw / "edge.csv.gz", [(0, 1)])
    _text(raw / "num-node-list.csv.gz", [(4,)])
    for name in ("train", "valid", "test"):
        torch.save({"edge": torch.tensor([[0, 1], [2, 3]]), "edge_neg": torch.tensor([[0, 3]])}, split / f"{name}.pt")


def _relational(path: Path) -> None:
    """Two tables of a database, as RelBench saves them."""
    path.mkdir()
    tables = {
        "drivers": (pa.table({"driverId": [0, 1], "height": [1.7, 1.8]}), "driverId", {}),
        "results": (pa.table({"driverId": [0, 1, 1], "points": [9, 3, 5]}), None, {"driverId": "drivers"}),
    }
    for name, (table, key, foreign) in tables.items():
        metadata = {"pkey_col": key, "fkey_col_to_pkey_table": foreign, "time_col": None}
        packed = {name: json.dumps(value) for name, value in metadata.items()}
        pyarrow.parquet.write_table(table.replace_schema_metadata(packed), path / f"{name}.parquet")


def _posts(path: Path) -> None:
    rng = np.random.default_rng(10)
    np.savez(path, feature=rng.random((6, 2)), label=rng.integers(0, 3, 6), node_types=[1, 1, 2, 2, 3, 3])


def _pyg_parts(path: Path) -> None:
    """Two parts of six nodes in a ring, as PyTorch Geometric writes them."""
    path.mkdir()
    part, src = torch.arange(6) % 2, torch.arange(6)
    meta = {"num_parts": 2, "node_types": None, "edge_types": None, "node_offset": None, "is_hetero": False}
    (path / "META.json").write_text(json.dumps(meta))
    for name in ("node_map", "edge_map"):
        torch.save(part, path / f"{name}.pt")
    for number in range(2):
        (folder := path / f"part_{number}").mkdir()
        rows = torch.nonzero(part == number)[:, 0]
        torch.save({"edge_id": rows, "row": src[rows], "col": (src[rows] + 1) % 6, "size": (6, 6)}, folder / "graph.pt")
        torch.save({"global_id": rows, "feats": {"x": torch.ones(3, 2)}}, folder / "node_feats.pt")
        torch.save({}, folder / "edge_feats.pt")


BEHAVIOR = [(1, 2, 9, "pv", 1511539200), (1, 3, 8, "buy", 1511539300), (4, 2, 9, "cart", 1511539250)]

SOURCES = {
    "mag/": _mag,
    "igbh/": _igbh,
    "collab/": _collab,
    "rel-f1/": _relational,
    "tgbl_wiki/": _tgb_links,
    "tgbn_trade/": _tgb_labels,
    "reddit_data.npz": _posts,
    "reddit_graph.npz": lambda path: np.savez(path, row=[0, 1], col=[1, 0], data=[1.0, 1.0], shape=[6, 6]),
    "UserBehavior.csv": lambda path: _text(path, BEHAVIOR),
    "pyg-parts/": _pyg_parts,
    "data/wikipedia.csv": _jodie,
    "events.csv": lambda path: _text(path, _events(), "src,dst,time"),
    "later.csv": lambda path: _text(path, [(7, 101, 10**9), (41, 101, 10**9 + 5)], "src,dst,time"),
    "by-year/": _years,
    "this_week.csv": lambda path: _text(path, _events()[:300], "src,dst,time"),
    "next_week.csv": lambda path: _text(path, _events(), "src,dst,time"),
    "data.pt": _pyg,
    "pairs.csv": _pairs,
    "links.csv": lambda path: path.write_text("src,dst\n1000,1003\n1006,1000\n"),
    "shop.yaml": _own_spec,
    "persons.yaml": _persons,
    "school.yaml": _school,
    "papers.yaml": _years_of_papers,
    "papers/": _chunks,
    "chunks/": _chunks,
    "own_model.BilinearTGN": lambda path: shutil.copy(REPOSITORY / "examples" / "own_model.py", path.parent),
    "graph.metis.part.16": lambda path: _text(path, [(node % 16,) for node in range(140)]),
    "negatives.npz": _negatives,
    "cora_planetoid.npz": _planetoid,
    "FB15k-237.tar.gz": _facts,
    "train.txt": lambda path: _lists(path, 6),
    "test.txt": lambda path: _lists(path, 2),
    "aifb_stripped.nt.gz": _triples,
    "trainingSet.tsv.gz": lambda path: _labeled(path, 0),
    "testSet.tsv.gz": lambda path: _labeled(path, 8),
    "chickenpox.json.gz": _chickenpox,
    "icews14/": _quadruples,
    "lists.csv": _snapshot_lists,
    "cases.csv": _series,
    "friends.csv": _friends,
    "meetings.csv": _meetings,
    "ml_enron.csv.gz": _tgn_ml,
    "enron10.csv.gz": _snapshot_lists,
    "los_speed.csv.gz": _speeds,
    "los_adj.csv.gz": lambda path: _text(path, np.eye(5).tolist()),
    "soc-sign-bitcoinalpha.csv.gz": lambda path: _text(path, [(a, b, 1, 400 * t) for a, b, t in _events()]),
    "sg_infectious_contact_list.tgz": _contacts,
    "sx-mathoverflow.txt.gz": lambda path: _text(path, _events(), separator=" "),
}
