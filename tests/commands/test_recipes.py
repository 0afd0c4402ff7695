"""The recipes in jobs/: each one learns more than a baseline knows, its keys exist, and its job script differs from the
others by name only."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import baselines
import h5py
import pytest
import yaml
from places import REPOSITORY
from run_commands import run

from data_tools.built_in import make_synthetic_graph, make_synthetic_snapshots
from data_tools.partition.command import partition
from data_tools.synthesize import synthesize_events
from data_tools.synthetic.static import synthesize_static
from hpcgnn import config as configuration
from hpcgnn.recipes import recipe_file, recipe_names

JOBS = REPOSITORY / "jobs"
RECIPES = {name: recipe_file(name) for name in recipe_names()}
KEYS = {name: yaml.safe_load(path.read_text()) for name, path in RECIPES.items()}
STATIC = [name for name, keys in KEYS.items() if keys.get("kind") == "static"]
STATIC_LINKS = ["bipartite", "distmult"]
SNAPSHOTS = ["tgcn", "evolvegcn"]
TEMPORAL = {name: keys.get("task", {}) for name, keys in KEYS.items() if "kind" not in keys}
LINKS = [name for name, task in TEMPORAL.items() if task.get("kind", "link") == "link"]
# Enough to learn from and to train on in seconds.
NUM_EVENTS, NUM_NODES, NUM_SNAPSHOTS = 4000, 1500, 30
EVENTS, LIKES = "user.interacts.item", "user.likes.item"
SMALL = ["--train.epochs=4", "--train.batch_size=50", "--train.lr=0.003", "--memory.dim=32",
         "--model.time_dim=32", "--model.hidden=32", "--comm.threads=1"]  # fmt: skip
SMALL_NODES = ["--train.epochs=12", "--train.batch_size=50", "--train.lr=0.01", "--model.hidden=32", "--comm.threads=1"]
SMALL_LINKS = ["--train.epochs=12", "--train.eval_every=3", "--model.hidden=32", "--comm.threads=1"]
SMALL_SNAPSHOTS = ["--train.epochs=30", "--model.hidden=32", "--comm.threads=1"]
BELOW_EDGEBANK = ["apan", "tgat"]
# The test's graph has no self-loops, which the preset igbh adds: a node's own row takes part otherwise.
OWN_ROW = "--model.self_loop=true"
# Features of the test's graph are as often negative as not: they are no bags of words, whose sums normalize is for. An
# epoch of a whole graph is one step.
UNSUMMED = "--features.normalize=false"
# The time that sequences take is that of their lengths and layers.
SEQUENCES = ["--sampling.fanouts=[7]", "--model.layers=1"]
CHANGES = {
    "apan": ["--train.epochs=8"], "dysat": ["--sampling.window_length=3000"], "gcn": [UNSUMMED],
    "gcn_full": [UNSUMMED, "--train.epochs=60"], "hetero": ["--train.epochs=80"], "rgat_igbh": [OWN_ROW],
    "dygformer": SEQUENCES, "tcl": [*SEQUENCES, "--train.epochs=12"], "tpnet": SEQUENCES,
    "cawn": ["--sampling.fanouts=[7, 1]"],
}  # fmt: skip
# Run folder and options of evaluations by another protocol than the run's own. A baseline needs no checkpoint.
EVALUATIONS = [["jodie", "--eval=tgb"], ["jodie", "--eval=inductive"], ["edgebank", "--baseline.kind=time_window"],
               ["edgebank"]]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def graphs(folder):
    """The graph files to train on, by what is in them; their partition sets lie beside them in ``parts``."""
    paths = {name: folder / "graphs" / name / "synthetic.h5" for name in ("events", "nodes", "links", "snapshots")}
    for path in paths.values():
        path.parent.mkdir(parents=True)
    synthesize_events(paths["events"], NUM_EVENTS, 200, 40, seed=1, feature_dim=16, labels=True)
    synthesize_static(paths["nodes"], NUM_NODES, 20 * NUM_NODES, seed=1, width=64, num_classes=5)
    for name in ("events", "nodes"):
        partition(paths[name], paths[name].parent / "parts", 16, method="metis")
    make_synthetic_graph(paths["links"].parent / "parts", 400, links=True)
    make_synthetic_snapshots(paths["snapshots"].parent / "parts", 60, NUM_SNAPSHOTS)
    return paths


@pytest.fixture(scope="module")
def trained(jobs, folder, graphs):
    """A callable that trains a recipe on two ranks, once; returns its run folder."""
    kinds = {name: ("nodes", SMALL_NODES) for name in STATIC}
    kinds |= {name: ("links", SMALL_LINKS) for name in STATIC_LINKS}
    kinds |= {name: ("snapshots", SMALL_SNAPSHOTS) for name in SNAPSHOTS}

    @cache
    def train(name: str) -> Path:
        graph, options = kinds.get(name, ("events", SMALL))
        data, run = graphs[graph].parent / "parts", folder / name
        given = [f"--config={RECIPES[name]}", f"--data.path={data}", *options, *CHANGES.get(name, [])]
        jobs(2, "train", *given, f"--output.dir={run}")
        return run

    return train


@pytest.fixture(scope="module")
def evaluated(jobs, trained):
    """What two ranks print for EVALUATIONS."""
    return [json.loads(jobs(2, "evaluate", trained(name), *options).stdout) for name, *options in EVALUATIONS]


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def score_of(run: Path, metric: str) -> float:
    """A metric of the test of a finished run."""
    *_, last = lines_of(run)
    assert last["kind"] == "test"
    return last[metric]


@pytest.mark.launcher
@pytest.mark.parametrize("recipe", [name for name in LINKS if name not in ("edgebank", *BELOW_EDGEBANK)])
def test_recipe_beats_edgebank(trained, recipe):
    """Which knows the same batches, negatives and events."""
    score, edgebank = (score_of(trained(name), "test_ap") for name in (recipe, "edgebank"))
    assert score > edgebank + 0.02, f"test AP of {recipe}: {score:.4f}, of EdgeBank: {edgebank:.4f}"


@pytest.mark.launcher
@pytest.mark.parametrize("recipe", BELOW_EDGEBANK)
def test_recipe_beats_popularity(trained, graphs, recipe):
    """Not EdgeBank: APAN's mails and TGAT's uniform neighbors need more events to tell pairs that repeat."""
    score, popular = score_of(trained(recipe), "test_ap"), popularity(graphs)
    assert score > popular + 0.02, f"test AP of {recipe}: {score:.4f}, of popularity: {popular:.4f}"


def popularity(graphs) -> float:
    return baselines.popular_events_ap(graphs["events"], EVENTS, NUM_EVENTS * 85 // 100)


@pytest.mark.launcher
def test_edgebank_beats_popularity(trained, graphs):
    """Without training: there is no line of an epoch."""
    (test,) = lines_of(trained("edgebank"))
    popular = popularity(graphs)
    assert test["test_ap"] > popular + 0.02, f"test AP of EdgeBank: {test['test_ap']:.4f}, of popularity: {popular:.4f}"


@pytest.mark.launcher
def test_recipe_of_labels_beats_the_share_of_ones(trained, graphs):
    """That share is the average precision of one class for all, or of a random order. Users keep their labels here: the
    last label of a user would tell all, no mark that can be passed."""
    with h5py.File(graphs["events"]) as file:
        share = file[f"edges/{EVENTS}/label"][NUM_EVENTS * 85 // 100 :].mean()
    score = score_of(trained("node"), "test_ap")
    assert score > share + 0.3, f"test AP: {score:.4f}, of one class for all: {share:.4f}"


@pytest.mark.launcher
@pytest.mark.parametrize("recipe", [name for name in STATIC if name not in STATIC_LINKS])
def test_recipe_of_nodes_beats_the_vote_of_neighbors(trained, graphs, recipe):
    """Each node has the class that most of its training neighbors have."""
    score, vote = score_of(trained(recipe), "test_accuracy"), baselines.neighbor_vote(graphs["nodes"])
    assert score > vote + 0.03, f"test accuracy of {recipe}: {score:.4f}, of the neighbors' vote: {vote:.4f}"


@pytest.mark.launcher
@pytest.mark.parametrize(("recipe", "metric"), [("bipartite", "test_recall@20"), ("distmult", "test_mrr")])
def test_recipe_of_static_links_beats_popularity(trained, graphs, recipe, metric):
    """Items, or for distmult both ends of a link, in order of their training links."""
    score = score_of(trained(recipe), metric)
    popular = {
        "test_recall@20": baselines.popular_items_recall(graphs["links"], LIKES, 20),
        "test_mrr": baselines.popular_ends_mrr(graphs["links"], LIKES),
    }[metric]
    assert score > 1.1 * popular, f"{metric} of {recipe}: {score:.4f}, of popularity: {popular:.4f}"


@pytest.mark.launcher
def test_recipe_of_numbers_beats_a_line_of_the_last_ones(trained, graphs):
    """Persistence with a slope, which is better than persistence."""
    error = score_of(trained("tgcn"), "test_mse")
    line = baselines.fitted_line_mse(graphs["snapshots"], NUM_SNAPSHOTS * 8 // 10)
    assert error < 0.96 * line, f"test MSE of tgcn: {error:.4f}, of a line of the last values: {line:.4f}"


@pytest.mark.launcher
def test_recipe_of_snapshot_links_beats_popularity(trained, graphs):
    """Not persistence, which is far better here: links stay for eight snapshots, and EvolveGCN sees no pair's past."""
    score = score_of(trained("evolvegcn"), "test_ap")
    popular = baselines.popular_snapshots_ap(graphs["snapshots"], NUM_SNAPSHOTS * 8 // 10, negatives=100)
    assert score > 1.6 * popular, f"test AP of evolvegcn: {score:.4f}, of popularity: {popular:.4f}"


@pytest.mark.launcher
@pytest.mark.parametrize("number", range(len(EVALUATIONS)))
def test_finished_run_is_scored_by_another_protocol(trained, evaluated, capsys, number):
    """The same on one rank as on two."""
    name, *options = EVALUATIONS[number]
    assert run([["evaluate", str(trained(name)), *options]]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.keys() == evaluated[number].keys()
    assert ("test_mrr" in found) == (found["negatives"] == "all") == (found.get("protocol") == "tgb")
    assert ("baseline" in found) == (name == "edgebank")
    for key in [key for key in found if key.startswith(("val_", "test_"))]:
        assert found[key] is None or found[key] == pytest.approx(evaluated[number][key], rel=1e-4)


@pytest.mark.launcher
def test_evaluation_of_a_baseline_repeats_its_test_line(trained, evaluated):
    test = json.loads((trained("edgebank") / "metrics.jsonl").read_text())
    assert test["baseline"] == evaluated[-1]["baseline"] == "unlimited"
    assert test.items() - {("kind", "test")} <= evaluated[-1].items()


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("options", "message"),
    [([], "--eval.negatives_file needs --eval"), (["--eval=random"], "eval.negatives_file is read by")],
)
def test_negatives_file_that_would_not_be_read(trained, capsys, options, message):
    assert run([["evaluate", str(trained("jodie")), "--eval.negatives_file=n.npz", *options]]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.launcher
def test_predict_refuses_the_run_of_a_baseline(folder, trained, capsys):
    pairs = folder / "pairs.csv"
    pairs.write_text("src,dst\n1000,1000\n")
    assert run([["predict", str(trained("edgebank")), f"--pairs={pairs}", f"--out={folder / 'out.csv'}"]]) == 2
    assert "is a run of baseline unlimited" in capsys.readouterr().err


@pytest.mark.serial
@pytest.mark.parametrize("path", [*RECIPES.values(), *(JOBS / "accuracy").glob("*.yaml")], ids=lambda path: path.stem)
def test_keys_of_a_run_file_exist(path):
    given = ["--config", str(path)]
    config, _ = configuration.parse(configuration.parser("test", "", configuration.kind_of(given)), given)
    resolved = config.to_dict()
    for section, keys in yaml.safe_load(path.read_text()).items():
        for key, value in keys.items() if section != "kind" else ():
            assert resolved[section][key] == value


@pytest.mark.serial
def test_job_scripts_differ_by_the_recipe_only():
    def commands(name: str) -> list[str]:
        lines = (JOBS / name).read_text().splitlines()
        return [line for line in lines if line.startswith("#SBATCH") or not line.startswith("#")]

    renamed = [
        line.replace("train_tgn", "train").replace("recipe tgn ", "recipe ") for line in commands("train_tgn.slurm")
    ]
    assert commands("train.slurm") == renamed
