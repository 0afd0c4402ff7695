"""Graphs where nothing can be learned, runs on them, and how far their metrics are from chance.

A wing's choices are factors: the values that a setting takes in tests of leaks. A row is a value for each of them; the
rows of leak_rows.json cover all pairs of values that the program accepts together. What a new choice needs is added to
them by ``python tests/properties/unlearnable.py``.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from hpcgnn.choices import tables_of
from hpcgnn.kinds import KINDS
from hpcgnn.static.model.convolutions import CONVOLUTIONS

ROWS = Path(__file__).resolve().with_name("leak_rows.json")
Row = dict[str, Any]
PERMUTATIONS = 200
LINKS = 90  # edges of a snapshot
SWITCH = (False, True)
NEGATIVES = "negatives-{split}.npz"  # beside the graph

# Of settings that take one of a few words, those that change neither what is asked nor what is known of it.
SAME_ANSWER = {
    "temporal": {
        "sampling.plan_on", "model.message", "model.time_encoding", "memory.update_at", "memory.placement", "task.loss",
        "task.negative_kind",
        "baseline.kind", "eval.protocol", "eval.negative_kind",  # the last two are the factor ``eval``
        "model.forecaster",  # of labels of nodes at times, which no row has: they need a file
    },
    "static": {
        "sampling.topology", "sampling.plan_on", "model.aggregator", "model.activation", "model.norm", "baseline.kind",
        "features.storage", "features.cache_policy", "features.wire",
    },
    "snapshots": {
        "task.negative_kind", "sampling.routes", "model.update", "model.norm", "data.split_by", "baseline.kind",
    },
}  # fmt: skip
ALWAYS_SAME = ("train.", "comm.", "output.", "node_embedding.")

# Factors that are no such settings, or not settings at all; those that are come from the configuration.
FURTHER: dict[str, dict[str, tuple]] = {
    "temporal": {
        "eval": ("random", "historical", "inductive", "all", "tgb"), "sampling.in_batch_neighbors": SWITCH,
        "sampling.random_chunks": (1, 3), "memory.staleness": (0, 1), "data.new_node_ratio": (0.0, 0.2),
    },
    "static": {
        "task.strict": SWITCH, "eval.exact": SWITCH, "graph.reverse": SWITCH,
        "train.full_graph": SWITCH, "sampling.all": SWITCH, "sampling.time_column": ("", "time"),
    },
    "snapshots": {
        "data.split_by": ("auto", "time", "nodes"), "task.horizon": (0, 1, 2), "sampling.window_size": (0, 3),
        "model.edge_weights": SWITCH,
        "sampling.updates_per_batch": (1, 2), "inputs.lags": (0, 2), "task.strict": SWITCH,
        "task.new_links": SWITCH, "task.undirected": SWITCH, "task.recurrency": SWITCH,
        "task.loss": ("", "softmax", "margin", "mae", "one_vs_all"), "task.forecast_steps": (1, 2),
    },
}  # fmt: skip


def worded(wing: str) -> dict[str, tuple]:
    """Settings of a wing's configuration that take one of a few words, with these: of a Literal, or of a table."""
    found = {}
    for section, kind in KINDS[wing].config.sections().items():
        for name, hint in get_type_hints(kind).items():
            if get_origin(hint) is Literal:
                found[f"{section}.{name}"] = get_args(hint)
        for name, table in tables_of(kind).items():
            default = getattr(kind, name)  # not in the table where the rest of the section decides
            found[f"{section}.{name}"] = tuple(table) if default in table else (default, *table)
    return found


def factors(wing: str) -> dict[str, tuple]:
    """All factors of a wing: a new choice of a setting enters by itself."""
    own = {
        name: choices for name, choices in worded(wing).items()
        if name not in SAME_ANSWER[wing] and not name.startswith(ALWAYS_SAME)
    }  # fmt: skip
    return own | FURTHER[wing]


BASE: dict[str, Row] = {
    "temporal": {
        "train.batch_size": 60, "train.lr": 0.02, "train.epochs": 3, "sampling.fanouts": [5], "sampling.prefetch": 0,
        "memory.dim": 8, "model.time_dim": 4, "model.hidden": 8, "model.dropout": 0.0,
    },
    "static": {
        "train.batch_size": 50, "train.lr": 0.02, "train.epochs": 12, "sampling.prefetch": 0,
        "sampling.fanouts": [5, 5], "model.layers": 2, "model.hidden": 16,
    },
    "snapshots": {
        "train.batch_size": 1, "train.lr": 0.02, "train.epochs": 25, "sampling.prefetch": 0, "model.hidden": 8,
        "node_embedding.dim": 8,
    },
}  # fmt: skip


def config_of(wing: str, row: Row) -> Any:
    """The configuration of a row. Raises ValueError where the program refuses it."""
    values = BASE[wing] | row
    values.pop("graph.reverse", None)
    protocol = values.pop("eval", "random")
    values |= (
        {}
        if wing != "temporal"
        else {"eval.protocol": "tgb"}
        if protocol == "tgb"
        else {"eval.negative_kind": protocol}
    )
    if values.get("sampling.strategy") == "window":
        values["sampling.window_length"] = 300
    if values.get("model.readout") == "tncn":
        values["model.common_hops"] = 2  # which also reads what one hop does
    if values.get("sampling.batch_by") == "span":
        values["sampling.batch_span"] = 100
    if values.pop("sampling.all", False):
        values["sampling.fanouts"] = [-1, -1]
    if values.get("train.full_graph"):
        values["sampling.fanouts"] = []
    if wing == "static" and values.get("task.kind") == "link" and not values.get("eval.ranking"):
        values["eval.negatives"] = 20  # a standard error is smaller then, and a leak so much farther from chance
    if wing == "static" and values.get("eval.ranking") in ("pooled", "listed"):
        values["eval.negatives_file"] = NEGATIVES
    if wing == "static" and values.get("model.kind") == "none":
        values |= {"model.layers": 0, "sampling.fanouts": []}
    if wing == "snapshots":
        target = "label" if values.get("task.kind") in ("node", "edge") else "target"
        values.setdefault("task.target", target)
    sections: dict[str, dict] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return KINDS[wing].config.from_dict(sections)


def is_accepted(wing: str, row: Row) -> bool:
    """Whether the program takes a row, on a graph of ``GRAPHS``, and there is a chance level to compare with."""
    if not HAS_CHANCE[wing](row):
        return False
    try:
        config_of(wing, row)
    except ValueError:
        return False
    return True


def temporal_chance(row: Row) -> bool:
    """Pairs that met before are no random ones where some nodes were never seen."""
    return not (row["data.new_node_ratio"] and row["eval"] in ("historical", "inductive"))


def static_chance(row: Row) -> bool:
    """What a graph's relations decide: some models take one of them only. Of nodes nothing is typed, nor reverse."""
    typed, of_nodes = row["task.message_edges"] != "stored", row["task.kind"] in ("node", "regression")
    if of_nodes:
        return not (typed or row["graph.reverse"] or row["eval.ranking"])
    if row["graph.reverse"] and typed:
        return False
    return not (CONVOLUTIONS[row["model.kind"]].one_relation and (typed or row["graph.reverse"]))


def snapshot_chance(row: Row) -> bool:
    """What a graph of one type and no repeated edges decides: attention has no weights, edges have no lags."""
    if row["model.kind"] in ("gat", "dysat", "regcn") and row["model.edge_weights"]:
        return False
    return row["task.kind"] in ("regression", "node") or not row["inputs.lags"]


HAS_CHANCE: dict[str, Callable[[Row], bool]] = {
    "temporal": temporal_chance, "static": static_chance, "snapshots": snapshot_chance
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ all pairs


def pairs_of(row: Row) -> Iterator[tuple]:
    """All pairs of (factor, value) of a row."""
    return itertools.combinations(((name, row[name]) for name in sorted(row)), 2)


PATHS: Row = {
    "model.kind": "nbfnet", "task.decoder": "paths", "task.kind": "link", "train.full_graph": True,
    "task.loss": "k_vs_all", "eval.ranking": "filtered",
}  # fmt: skip
# What a value needs beside it, where a random row hardly ever has it.
NEEDS: dict[tuple, Row] = {("model.kind", "nbfnet"): PATHS, ("task.decoder", "paths"): PATHS}


def complete(wing: str, fixed: Row, rng: np.random.Generator, tries: int) -> Row | None:
    """A random row that the program accepts with some values fixed; None where none was found."""
    choices = factors(wing)
    for pair in fixed.items():
        fixed = (NEEDS.get(pair, {}) if wing == "static" else {}) | fixed
    for number in range(tries):
        keep = number / tries  # of the first values, which go together
        drawn = {name: values[rng.integers(len(values))] for name, values in choices.items()}
        row = {name: values[0] if rng.random() < keep else drawn[name] for name, values in choices.items()} | fixed
        if is_accepted(wing, row):
            return row
    return None


def missing_pairs(wing: str, rows: list[Row]) -> dict[tuple, Row]:
    """Pairs of values that no row has and the program accepts, each with a row that has it."""
    covered = {pair for row in rows for pair in pairs_of(row)}
    found = {}
    rng = np.random.default_rng(0)
    for (one, first), (other, second) in itertools.combinations(sorted(factors(wing).items()), 2):
        for pair in itertools.product(((one, value) for value in first), ((other, value) for value in second)):
            if pair not in covered and (row := complete(wing, dict(pair), rng, 50)) is not None:
                found[pair] = row
    return found


def cover(wing: str, rows: list[Row]) -> list[Row]:
    """Those of the rows that are still accepted and needed, and further ones, until all pairs are there."""
    rows = [row for row in rows if row.keys() == factors(wing).keys() and is_accepted(wing, row)]
    rng = np.random.default_rng(1)
    missing: dict[tuple, Row] = {}
    while missing := missing or missing_pairs(wing, rows):  # looked for again: the search takes another way then
        pair = next(iter(missing))
        candidates = [missing[pair], *(complete(wing, dict(pair), rng, 30) for _ in range(30))]
        best = max(filter(None, candidates), key=lambda row: sum(each in missing for each in pairs_of(row)))
        rows.append(best)
        for each in pairs_of(best):
            missing.pop(each, None)
    return needed(rows)


def needed(rows: list[Row]) -> list[Row]:
    """Few of the rows that have all pairs of all of them: the one with most pairs that are left is taken first."""
    pairs = [set(pairs_of(row)) for row in rows]
    left, chosen = set().union(*pairs), set()
    while left:
        best = max(range(len(rows)), key=lambda place: len(left & pairs[place]))
        chosen.add(best)
        left -= pairs[best]
    return [rows[place] for place in sorted(chosen)]


def read_rows(wing: str) -> list[Row]:
    """The committed rows of a wing; none where there are no such yet."""
    stored = json.loads(ROWS.read_text() if ROWS.exists() else "{}").get(wing, {"factors": [], "rows": []})
    return [dict(zip(stored["factors"], row, strict=True)) for row in stored["rows"]]


def first_of(wing: str) -> Row:
    """The first value of every factor."""
    return {name: values[0] for name, values in factors(wing).items()}


def write_rows(wings: list[str]) -> None:
    """Bring the committed rows of some wings, or of all, up to date."""
    rows = {wing: [first_of(wing) | row for row in read_rows(wing)] for wing in FURTHER}
    for wing in wings or FURTHER:
        rows[wing] = cover(wing, rows[wing])
        print(wing, len(rows[wing]), "rows", flush=True)
        ROWS.write_text("{" + ",\n".join(_table(*item) for item in rows.items()) + "}\n")


def _table(wing: str, rows: list[Row]) -> str:
    """JSON of the rows of a wing, each in a line."""
    names = list(factors(wing))
    lines = ",\n  ".join(json.dumps([row[name] for name in names]) for row in rows)
    return f'"{wing}": {{"factors": {json.dumps(names)}, "rows": [\n  {lines}\n]}}'


# -------------------------------------------------------------------------------------------------------------- chance


def standing(columns: dict[str, np.ndarray], before: dict[str, np.ndarray], measure: Callable[[dict], dict]) -> float:
    """How many standard errors a split's metric is better than chance, from the collected columns of a trained model.

    Chance is the metric of the same scores with permuted targets: of pairs within a row, of labels among rows. Of ranks
    among many nodes, whose scores are gone, it is what the model had ``before`` it was trained; of all pairs of nodes
    an AUC of a half.
    """
    if "rank" in columns:
        gain, ranks = before["rank"].mean() - columns["rank"].mean(), (columns["rank"], before["rank"])
        return float(gain / math.sqrt(sum(rank.var() for rank in ranks) / len(columns["rank"])))
    if "map" in columns:
        auc = columns["auc"][np.isfinite(columns["auc"])]
        return float((auc.mean() - 0.5) * math.sqrt(12 * LINKS * len(auc)))
    rng = np.random.default_rng(0)
    own = first_metric(measure(columns))
    chance = np.array([first_metric(measure(permuted(columns, rng))) for _ in range(PERMUTATIONS)])
    if chance.std() == 0:  # the same answer for all, which is chance whatever the targets are
        return 0.0
    return float((own - chance.mean()) / chance.std(ddof=1))


def first_metric(metrics: dict[str, float]) -> float:
    """One metric of a split, larger being better: the AUC where there is one, as it does not depend on a threshold."""
    return -metrics["mse"] if "mse" in metrics else metrics.get("auc", next(iter(metrics.values())))


def permuted(columns: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The same scores for other targets."""
    if "label" in columns:
        return columns | {"label": columns["label"][rng.permutation(len(columns["label"]))]}
    if columns["negative"].ndim == 1:  # a pool, which all pairs are compared with
        scores = rng.permutation(np.concatenate([columns["positive"], columns["negative"]]))
        positive, negative = np.split(scores, [len(columns["positive"])])
        return columns | {"positive": positive, "negative": negative}
    scores = np.concatenate([columns["positive"][:, None], columns["negative"]], axis=1)
    place = rng.integers(0, scores.shape[1], len(scores))
    rows = np.arange(len(scores))
    scores[rows, 0], scores[rows, place] = scores[rows, place].copy(), scores[:, 0].copy()
    return columns | {"positive": scores[:, 0], "negative": scores[:, 1:]}


if __name__ == "__main__":
    write_rows(sys.argv[1:])
