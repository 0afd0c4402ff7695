"""Compares this checkout with an older commit, for changes that must not change what a run does:

    python3 tests/guard [COMMIT] [--only PATTERN] [--ranks 1 2 3] [--tolerance 1e-12] [--no-bench] [--rounds 5]
                               [--work FOLDER] [--record]

COMMIT is the newest one that is a day old, if none is given. Both are built and run on this machine, one after the
other, with commands that users are given; floating-point results differ between processors, so none is kept.
Compared are

* parts: the bytes of every part file and book, by graph, method and number of ranks;
* samples: what the loaders of docs/library.md draw (samples.py), also with digests.json, which is kept;
* runs: of every recipe on its built-in graph, and on graphs of ../shared/data where these are: losses of all steps and
  metrics (two epochs, float64), what the ranks sent (wire.py), and what ``evaluate`` prints, on 1, 2 and 3 ranks;
* times of ``hpcgnn.bench``, in pairs and in turns: an error from 3 % on, where a second series, three times as long,
  finds it too.

Cases that both commits refuse on all numbers of ranks compare nothing: an error.

The older commit's results are kept in FOLDER (default: beside other temporary files) for the next comparison.
``--record`` writes digests.json anew. ``--only`` takes the cases whose name matches a regular expression. Exit code 1:
something differs.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
SHARED = REPOSITORY.parent / "shared" / "data"
STORED = HERE / "digests.json"
SLOWER = 1.03
CLOCKS = re.compile(r"seconds|per_second|time")  # keys of a record that no two runs have in common

# Graphs, made by each commit for itself: commands, where {name} is a file of SHARED.
GRAPHS = {
    "events": ["data_tools.synthesize --events 4000 graph.h5"],
    "static": ["data_tools.synthesize --static --num_nodes 1500 --num_edges 30000 graph.h5"],
    "snapshots": ["data_tools.synthesize --snapshots 30 --num_nodes 60 graph.h5"],
    "wikipedia": ["data_tools.convert --preset jodie --set events={wikipedia/wikipedia.csv.gz} graph.h5"],
    "otc": ["data_tools.convert --preset snap-signed --set events={bitcoin-otc/soc-sign-bitcoinotc.csv.gz} graph.h5"],
    "cora": ["data_tools.convert --preset planetoid --set graph={cora/cora_planetoid.npz} graph.h5"],
    "aifb": [
        "data_tools.convert --preset rdf --set triples={aifb/aifb_stripped.nt.gz} --set id=person "
        "--set train={aifb/trainingSet.tsv.gz} --set test={aifb/testSet.tsv.gz} --set label=label_affiliation graph.h5"
    ],
    "wn18rr": ["data_tools.convert --preset kg-links --set facts={wn18rr/WN18RR.tar.gz} graph.h5"],
    "covid": ["data_tools.snapshots pygt {pygt/england_covid.json.gz} graph.h5"],
    "otc-weeks": [
        "data_tools.convert --preset snap-signed --set events={bitcoin-otc/soc-sign-bitcoinotc.csv.gz} events.h5",
        "data_tools.snapshots windows events.h5 graph.h5 --windows 40",
    ],
}  # fmt: skip
METHODS = ("metis", "random", "ldg", "fennel")
BY_RANKS = ("random", "ldg", "fennel")  # methods of several ranks that need no further library
STORED_METHODS = ("random",)  # integers alone decide

RECIPES = ("tgn", "tgn_pair", "jodie", "dyrep", "apan", "tgat", "dysat", "graphmixer", "dygformer", "tcl",
           "tncn", "tpnet", "cawn", "node", "edgebank", "sage", "gcn", "gcn_full", "gat", "rgcn", "hetero", "bipartite",
           "distmult", "tgcn", "evolvegcn")  # fmt: skip
# Runs on graphs of SHARED, and what recipes leave out: graph, recipe, options.
RUNS = {
    "wikipedia tgn": ("wikipedia", "tgn", ""),
    "wikipedia node": ("wikipedia", "node", ""),
    "otc graphmixer": ("otc", "graphmixer", ""),
    "cora gcn_full": ("cora", "gcn_full", ""),
    "cora sage": ("cora", "sage", "--train.batch_size 32"),
    "cora gat": ("cora", "gat", "--train.batch_size 64"),
    "aifb rgcn": ("aifb", "rgcn", "--train.batch_size 50"),
    "wn18rr distmult": ("wn18rr", "distmult", "--train.batch_size 8192"),
    "covid tgcn": ("covid", "tgcn", ""),
    "otc-weeks evolvegcn": ("otc-weeks", "evolvegcn", ""),
    "tgn user update": ("", "tgn", "--memory.update_at user --sampling.strategy uniform --sampling.prefetch 0"),
    "tgn mails": ("", "tgn", "--memory.updater transformer --memory.mailbox_slots 3"),
    "tgn replicated": ("", "tgn", "--memory.placement replicated"),
    "tgn negatives": ("", "tgn", "--task.negatives 5 --sampling.batch_by time"),
    "sage replicated": ("", "sage", "--sampling.topology replicated --features.cache_ratio 0.2"),
    "sage sampler rank": ("", "sage", "--comm.sampling_servers 1"),
    "gat labor": ("", "gat", "--sampling.strategy labor"),
    "bipartite shared": ("", "bipartite", "--task.negative_sharing shared --task.negatives 20"),
    "tgcn history": ("", "tgcn", "--sampling.window_size 4 --sampling.halo_staleness 1"),
}  # fmt: skip
# Benchmarks, in pairs; graph "" is the built-in one.
BENCHES = {
    "temporal": ("wikipedia", "--comm.threads 1"),
    "temporal built-in": ("", "--comm.threads 1 --repeat 9"),
    "static": ("", "sage --comm.threads 1 --steps 50"),
    "snapshots": ("", "snapshots --train.batch_size 600 --comm.threads 1 --epochs 50"),
}


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Tree:
    """A checkout with a .venv of its own, and the folder of what it makes."""

    root: Path
    work: Path

    def run(self, command: str | list[str], cwd: Path, ranks: int = 0, check: bool = True) -> str:
        """What "MODULE ARGUMENT..." or a script prints, on so many ranks (0: without mpirun)."""
        words = command.split() if isinstance(command, str) else command
        python = [str(self.root / ".venv/bin/python")]
        start = python if words[0].endswith(".py") else [*python, "-m"]
        if ranks:
            launcher = f"mpirun --oversubscribe --bind-to none -np {ranks}".split()
            start = ["bash", str(self.root / "jobs/clean_start.sh"), *launcher, *start]
        cwd.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([*start, *words], cwd=cwd, env=self._environment(), capture_output=True, text=True)
        if check and done.returncode:
            raise SystemExit(f"{self.root}: {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout if not done.returncode else f"exit code {done.returncode}"

    def _environment(self) -> dict[str, str]:
        path = f"{self.root / '.venv/bin'}:{os.environ['PATH']}"
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
        return {**os.environ, **root, "PATH": path, "OMP_NUM_THREADS": "1"}

    def graph(self, name: str) -> Path:
        """The folder of a graph file and its partition set ``parts``, made when first asked for."""
        folder = self.work / "graphs" / name
        if not (folder / "parts" / "book.h5").exists():
            shutil.rmtree(folder, ignore_errors=True)
            for command in GRAPHS[name]:
                self.run(re.sub(r"\{(.*?)\}", lambda found: str(SHARED / found[1]), command), folder)
            self.run("data_tools.partition graph.h5 parts --parts 16 --method random", folder)
        return folder


def sources(name: str) -> list[str]:
    return [file for command in GRAPHS.get(name, []) for file in re.findall(r"\{(.*?)\}", command)]


def has(name: str) -> bool:
    """Whether a graph can be made here."""
    return all((SHARED / file).exists() for file in sources(name))


# What is compared: functions of a tree and a number of ranks, which return what JSON can hold.


def parts(tree: Tree, ranks: int, graph: str, method: str) -> dict[str, str]:
    folder = tree.graph(graph)
    out = tree.work / "parts" / f"{graph}-{method}-{ranks}"
    shutil.rmtree(out, ignore_errors=True)
    several = ranks if ranks > 1 else 0
    tree.run(f"data_tools.partition {folder / 'graph.h5'} {out} --parts 8 --method {method}", tree.work, several)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sorted(out.glob("*.h5"))}


def samples(tree: Tree, ranks: int) -> dict[str, list[str]]:
    sets = [str(tree.graph(name) / "parts") for name in ("events", "static")]
    return json.loads(tree.run([str(HERE / "samples.py"), *sets], tree.work, ranks).strip().splitlines()[-1])


def training(tree: Tree, ranks: int, name: str, graph: str, recipe: str, options: str) -> dict[str, Any]:
    folder = tree.work / "runs" / f"{name.replace(' ', '-')}-{ranks}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run = folder / "run"
    command = [str(HERE / "wire.py"), str(folder), "hpcgnn.train", "--recipe", recipe, "--output.dir", str(run)]
    command += ["--train.precision=float64", "--train.epochs=2", "--train.log_every=1", "--comm.threads=1"]
    command += [f"--data.path={tree.graph(graph) / 'parts'}"] if graph else []
    said = tree.run([*command, *options.split()], folder, ranks, check=False)
    if not (run / "metrics.jsonl").exists():
        return {"refused": said}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    wire = [json.loads((folder / f"wire-{rank}.json").read_text()) for rank in range(ranks)]
    evaluated = tree.run(["hpcgnn.evaluate", str(run)], folder, ranks, check=False)
    return {"records": [without_clocks(line) for line in lines], "wire": wire, "evaluate": evaluated}


def without_clocks(record: dict) -> dict:
    return {key: value for key, value in record.items() if not CLOCKS.search(key)}


def cases(ranks: Iterable[int]) -> dict[str, Callable[[Tree], Any]]:
    """Every comparison by name."""
    found: dict[str, Callable[[Tree], Any]] = {}
    for graph in filter(has, GRAPHS):
        for method in METHODS:
            found[f"parts {graph} {method} 1"] = lambda tree, g=graph, m=method: parts(tree, 1, g, m)
    for graph in ("events", "static", "snapshots"):
        for method in BY_RANKS:
            found[f"parts {graph} {method} 2"] = lambda tree, g=graph, m=method: parts(tree, 2, g, m)
    for number in ranks:
        found[f"samples {number}"] = lambda tree, n=number: samples(tree, n)
    runs = {recipe: ("", recipe, "") for recipe in RECIPES} | RUNS
    for name, what in runs.items():
        for number in ranks if has(what[0]) else ():
            found[f"run {name} {number}"] = lambda tree, n=number, name=name, w=what: training(tree, n, name, *w)
    return found


def differences(before: Any, after: Any, tolerance: float, place: str = "") -> list[str]:
    """Where two results differ; numbers with how far they are apart, relatively, if that is more than the tolerance.

    With one, sums may be added up in another order, so that the numbers that are sent differ too: not how many."""
    if tolerance and place == "/wire/digest":
        return []
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        return [line for key in before for line in differences(before[key], after[key], tolerance, f"{place}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        inner = place if place == "/wire" else None
        pairs = enumerate(zip(before, after, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, tolerance, inner or f"{place}/{i}")]
    if before == after or (before != before and after != after):
        return []
    if isinstance(before, float) and isinstance(after, float):
        apart = abs(before - after) / max(abs(before), 1e-300)
        return [f"{place}: {before!r} {after!r}, {apart:.1e}"] if not apart <= tolerance else []
    if isinstance(before, str) and isinstance(after, str) and before.startswith("{") and after.startswith("{"):
        return differences(json.loads(before), json.loads(after), tolerance, place)
    return [f"{place}: {str(before)[:200]} | {str(after)[:200]}"]


def compare(
    trees: tuple[Tree, Tree], chosen: dict[str, Callable[[Tree], Any]], tolerance: float
) -> tuple[int, dict[str, Any]]:
    """Run all cases in both trees; returns how many differ, and this tree's results."""
    before, after = trees
    kept = before.work / "results.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    wrong, results, refusals = 0, {}, collections.defaultdict(list)
    for name, measure in chosen.items():
        if name not in known:
            known[name] = measure(before)
            kept.write_text(json.dumps(known))
        # Through JSON, as what is known went.
        results[name] = json.loads(json.dumps(measure(after)))
        found = differences(known[name], results[name], tolerance)
        refused = isinstance(results[name], dict) and "refused" in results[name]
        log(f"{'DIFFERS' if found else 'same   '} {name}{' (refused by both)' if refused and not found else ''}")
        for line in found[:6]:
            log(f"        {line}")
        wrong += bool(found)
        refusals[name.rpartition(" ")[0]].append(refused)
    for case in [case for case, refused in refusals.items() if len(refused) > 1 and all(refused)]:
        log(f"REFUSED {case}: by both on all numbers of ranks, which compares nothing")
        wrong += 1
    return wrong, results


def storable(results: dict[str, Any]) -> dict[str, Any]:
    """Those results that integers decide on any processor, of graphs that every checkout can make."""
    kept = {f"parts {graph} {method} {n}" for graph in ("events", "static", "snapshots") for method in STORED_METHODS
            for n in (1, 2)}  # fmt: skip
    return {name: found for name, found in results.items() if name in kept or name.startswith("samples ")}


def check_stored(results: dict[str, Any], record: bool) -> int:
    """Compare with digests.json, or write it; returns how many differ."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    mine = storable(results)
    if record:
        STORED.write_text(json.dumps(stored | mine, indent=1) + "\n")
        return 0
    wrong = [name for name in mine if stored.get(name) != mine[name]]
    for name in wrong:
        log(f"DIFFERS {name} from {STORED.name}")
    return len(wrong)


def seconds(tree: Tree, graph: str, arguments: str) -> float:
    """Of the best epoch or step of a benchmark."""
    data = ["--data.path", str(tree.graph(graph) / "parts")] if graph else []
    first, *rest = arguments.split()
    words = [first, *data, *rest] if not first.startswith("-") else [*data, first, *rest]
    tree.run(["hpcgnn.bench", *words, "--out", "bench.json"], tree.work)
    report = json.loads((tree.work / "bench.json").read_text())
    return next(report[name] for name in ("epoch_seconds_best", "step_seconds_best") if name in report)


def is_slower(trees: tuple[Tree, Tree], rounds: int, name: str) -> bool:
    """Time a benchmark in turns; says whether it is slower than before, by the median of the paired ratios and by the
    best."""
    taken: list[tuple[float, float]] = []
    for turn in range(rounds):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        pair = {which: seconds(trees[which], *BENCHES[name]) for which in order}
        taken.append((pair[0], pair[1]))
    ratio = statistics.median(after / before for before, after in taken)
    best = [min(times) for times in zip(*taken, strict=True)]
    slower = ratio > SLOWER and best[1] / best[0] > SLOWER
    verdict = "SLOWER " if slower else "timed  "
    log(f"{verdict} {name}: best {best[0]:.4f} and {best[1]:.4f} s, ratio {ratio:.3f} (median of {rounds})")
    return slower


def bench(trees: tuple[Tree, Tree], rounds: int, pattern: re.Pattern) -> int:
    """Time all benchmarks; returns how many are slower than before. Other work on the machine makes a short series say
    so now and then: a longer one must agree."""
    chosen = [name for name, (graph, _) in BENCHES.items() if pattern.search(f"bench {name}") and has(graph)]
    return sum(is_slower(trees, rounds, name) and is_slower(trees, 3 * rounds, name) for name in chosen)


def checkout(commit: str, folder: Path) -> Path:
    """A clone of this repository at a commit, set up; kept for the next comparison."""
    tree = folder / "tree"
    if not tree.exists():
        subprocess.run(["git", "clone", "-q", "--shared", REPOSITORY, tree], check=True)
        subprocess.run(["git", "-C", tree, "checkout", "-q", commit], check=True)
    return tree


def find_commit(name: str) -> str:
    """The hash of a commit; of none the newest that is a day old. Raises CalledProcessError for an unknown name."""
    words = (
        ["rev-parse", "--verify", f"{name}^{{commit}}"] if name else ["rev-list", "-1", "--before=1 day ago", "HEAD"]
    )
    found = subprocess.check_output(["git", "-C", REPOSITORY, *words], text=True).strip()
    return found or find_commit("HEAD")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="")
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tolerance", type=float, default=0.0, help="of numbers, relatively: sums in another order")
    parser.add_argument("--no-bench", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "hpcgnn-guard")
    parser.add_argument("--record", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = parse()
    commit = find_commit(options.commit)
    folder = options.work.resolve() / commit[:12]
    folder.mkdir(parents=True, exist_ok=True)
    trees = Tree(checkout(commit, folder), folder), Tree(REPOSITORY, options.work.resolve() / "after")
    shutil.rmtree(trees[1].work, ignore_errors=True)
    for tree in trees:
        subprocess.run(["bash", "jobs/setup.sh"], cwd=tree.root, check=True)
    pattern = re.compile(options.only)
    chosen = {name: case for name, case in cases(options.ranks).items() if pattern.search(name)}
    wrong, results = compare(trees, chosen, options.tolerance)
    wrong += check_stored(results, options.record)
    if not options.no_bench:
        wrong += bench(trees, options.rounds, pattern)
    log(f"{wrong} of the results above differ" if wrong else "all the same")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
