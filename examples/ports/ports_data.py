"""Write small graphs in the files of public data sets, for the programs of docs/ports.md.

python ports_data.py reddit      # reddit_data.npz, reddit_graph.npz
python ports_data.py taobao      # UserBehavior.csv
python ports_data.py products    # the folder products/ of OGB
python ports_data.py mag         # the folder mag/ of OGB
"""

import csv
import gzip
import sys
from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)


def communities(num_nodes, num_classes, degree, width):
    """Classes, features that show them weakly, and edges [E, 2] that mostly stay within a class."""
    label = rng.integers(0, num_classes, num_nodes)
    feat = (0.6 * np.eye(width)[label] + rng.normal(size=(num_nodes, width))).astype(np.float32)
    source = np.repeat(np.arange(num_nodes), degree)
    order = np.argsort(label, kind="stable")
    start, count = np.searchsorted(label[order], label[source]), np.bincount(label)[label[source]]
    same = order[start + rng.integers(0, count)]
    other = np.where(rng.random(len(source)) < 0.7, same, rng.integers(0, num_nodes, len(source)))
    return label, feat, np.unique(np.stack([source, other], 1)[source != other], axis=0)


def reddit(num_nodes=1000):
    label, feat, edges = communities(num_nodes, 5, 8, 16)
    edges = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
    part = rng.choice([1, 2, 3], num_nodes, p=[0.6, 0.2, 0.2])
    np.savez("reddit_data.npz", feature=feat, label=label, node_types=part, node_ids=np.arange(num_nodes))
    ones, shape = np.ones(len(edges), np.float32), np.array([num_nodes, num_nodes])
    np.savez("reddit_graph.npz", row=edges[:, 0], col=edges[:, 1], data=ones, shape=shape, format=b"coo")


def taobao(num_users=300, num_items=120, num_rows=6000):
    with open("UserBehavior.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in range(num_rows):
            user = int(rng.integers(num_users))
            item = int(user % 6 + 6 * rng.integers(num_items // 6) if rng.random() < 0.8 else rng.integers(num_items))
            behavior = ["pv", "cart", "buy", "fav"][rng.choice(4, p=[0.7, 0.1, 0.1, 0.1])]
            writer.writerow([100 + user, 5000 + item, 900 + item % 6, behavior, 1511539200 + 100 * row])


def table(path, rows):
    """Write a csv.gz without a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(np.reshape(rows, (len(rows), -1)).tolist())


def split(folder, num_nodes):
    order = rng.permutation(num_nodes)
    shares = np.split(order, [num_nodes // 2, 3 * num_nodes // 4])
    for name, rows in zip(("train", "valid", "test"), shares, strict=True):
        table(folder / f"{name}.csv.gz", np.sort(rows))


def products(num_nodes=1000):
    label, feat, edges = communities(num_nodes, 5, 6, 16)
    raw = Path("products/raw")
    table(raw / "edge.csv.gz", edges)
    table(raw / "node-feat.csv.gz", feat)
    table(raw / "node-label.csv.gz", label)
    table(raw / "num-node-list.csv.gz", [num_nodes])
    table(raw / "num-edge-list.csv.gz", [len(edges)])
    split(Path("products/split/sales_ranking"), num_nodes)


def mag(num_papers=600, num_authors=200):
    label, feat, cites = communities(num_papers, 4, 4, 16)
    papers, authors = np.arange(num_papers), np.arange(num_authors)
    relations = {
        ("author", "affiliated_with", "institution"): np.stack([authors, authors % 20], 1),
        ("author", "writes", "paper"): np.stack([label * (num_authors // 4) + papers % (num_authors // 4), papers], 1),
        ("paper", "cites", "paper"): cites,
        ("paper", "has_topic", "field_of_study"): np.stack([papers, label * 5 + papers % 5], 1),
    }
    raw = Path("mag/raw")
    counts = {"author": num_authors, "field_of_study": 20, "institution": 20, "paper": num_papers}
    table(raw / "num-node-dict.csv.gz", [list(counts), list(counts.values())])
    table(raw / "triplet-type-list.csv.gz", list(relations))
    for names, edges in relations.items():
        table(raw / "relations" / "___".join(names) / "edge.csv.gz", edges)
    table(raw / "node-feat/paper/node-feat.csv.gz", feat)
    table(raw / "node-label/paper/node-label.csv.gz", label)
    split(Path("mag/split/time/paper"), num_papers)


if __name__ == "__main__":
    {"reddit": reddit, "taobao": taobao, "products": products, "mag": mag}[sys.argv[1]]()
