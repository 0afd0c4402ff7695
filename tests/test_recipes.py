"""The recipes in jobs/: each one trains, its keys exist, and its job script differs from the others by name only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from run_commands import run

from hpcgnn import config as configuration
from hpcgnn.run.synthetic import make_synthetic, make_synthetic_graph, make_synthetic_snapshots

JOBS = Path(__file__).resolve().parent.parent / "jobs"
RECIPES = {path.stem.removeprefix("train_"): path for path in sorted(JOBS.glob("train_*.yaml"))}
KEYS = {name: yaml.safe_load(path.read_text()) for name, path in RECIPES.items()}
STATIC = [name for name, keys in KEYS.items() if keys.get("kind") == "static"]
STATIC_METRICS = {"bipartite": "test_recall@20", "distmult": "test_mrr"}  # of the others test_accuracy
SNAPSHOTS = {"tgcn": "test_mse", "evolvegcn": "test_ap"}
LINKS = [name for name, keys in KEYS.items() if "task" not in keys and name not in STATIC]
SMALL = ["--train.epochs=1", "--train.batch_size=100", "--model.memory_dim=8", "--model.time_dim=8",
         "--model.embed_dim=8", "--comm.threads=1"]  # fmt: skip
SMALL_STATIC = ["--train.epochs=2", "--model.hidden=8", "--comm.threads=1"]
# Run folder and options of evaluations by another protocol than the run's own. A baseline needs no checkpoint.
EVALUATIONS = [["jodie", "--eval=tgb"], ["jodie", "--eval=inductive"], ["edgebank", "--baseline=time_window"],
               ["edgebank"]]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def evaluated(jobs, folder):
    """What two ranks print for EVALUATIONS, after they have trained all recipes on the built-in events in one job."""
    make_synthetic(folder / "parts", 600)
    make_synthetic_graph(folder / "static-parts", 400)
    make_synthetic_graph(folder / "link-parts", 400, links=True)
    make_synthetic_snapshots(folder / "snapshot-parts", 60, 20)
    temporal = [*SMALL, f"--data.path={folder / 'parts'}"]
    nodes, links = ([*SMALL_STATIC, f"--data.path={folder / name}"] for name in ("static-parts", "link-parts"))
    commands = [
        ["train", f"--config={RECIPES[name]}", *given, f"--output.dir={folder / name}"]
        for names, given in (
            (LINKS, temporal),
            ([name for name in STATIC if name not in STATIC_METRICS], nodes),
            (STATIC_METRICS, [*links, "--train.eval_every=1"]),
            (SNAPSHOTS, [*SMALL_STATIC, f"--data.path={folder / 'snapshot-parts'}"]),
        )
        for name in names
    ]
    for command in commands:
        jobs(2, *command)
    return [json.loads(jobs(2, "evaluate", folder / name, *options).stdout) for name, *options in EVALUATIONS]


@pytest.mark.launcher
@pytest.mark.parametrize("recipe", LINKS)
def test_recipe_trains(folder, evaluated, recipe):
    lines = [json.loads(line) for line in (folder / recipe / "metrics.jsonl").read_text().splitlines()]
    (test,) = [line for line in lines if line["kind"] == "test"]
    assert 0 < test["test_ap"] <= 1
    assert ("epoch" in {line["kind"] for line in lines}) == (recipe != "edgebank")


@pytest.mark.launcher
@pytest.mark.parametrize("recipe", STATIC)
def test_recipe_of_a_static_graph_trains(folder, evaluated, recipe):
    *_, test = [json.loads(line) for line in (folder / recipe / "metrics.jsonl").read_text().splitlines()]
    assert test["kind"] == "test"
    assert 0 < test[STATIC_METRICS.get(recipe, "test_accuracy")] <= 1


@pytest.mark.launcher
@pytest.mark.parametrize("recipe", SNAPSHOTS)
def test_recipe_of_snapshots_trains(folder, evaluated, recipe):
    *_, test = [json.loads(line) for line in (folder / recipe / "metrics.jsonl").read_text().splitlines()]
    assert test["kind"] == "test"
    assert 0 < test[SNAPSHOTS[recipe]] <= 1


@pytest.mark.launcher
@pytest.mark.parametrize("number", range(len(EVALUATIONS)))
def test_finished_run_is_scored_by_another_protocol(folder, evaluated, capsys, number):
    """The same on one rank as on two."""
    name, *options = EVALUATIONS[number]
    assert run([["evaluate", str(folder / name), *options]]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.keys() == evaluated[number].keys()
    assert ("test_mrr" in found) == (found["negatives"] == "all") == (found.get("protocol") == "tgb")
    assert ("baseline" in found) == (name == "edgebank")
    for key in [key for key in found if key.startswith(("val_", "test_"))]:
        assert found[key] is None or found[key] == pytest.approx(evaluated[number][key], rel=1e-4)


@pytest.mark.launcher
def test_evaluation_of_a_baseline_repeats_its_test_line(folder, evaluated):
    test = json.loads((folder / "edgebank" / "metrics.jsonl").read_text())
    assert test["baseline"] == evaluated[-1]["baseline"] == "unlimited"
    assert test.items() - {("kind", "test")} <= evaluated[-1].items()


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("options", "message"),
    [([], "--negatives_file needs --eval"), (["--eval=random"], "eval.negatives_file is read by")],
)
def test_negatives_file_that_would_not_be_read(folder, evaluated, capsys, options, message):
    assert run([["evaluate", str(folder / "jodie"), "--negatives_file=n.npz", *options]]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.launcher
def test_predict_refuses_the_run_of_a_baseline(folder, evaluated, capsys):
    pairs = folder / "pairs.csv"
    pairs.write_text("src,dst\n1000,1000\n")
    assert run([["predict", str(folder / "edgebank"), f"--pairs={pairs}", f"--out={folder / 'out.csv'}"]]) == 2
    assert "is a run of baseline unlimited" in capsys.readouterr().err


@pytest.mark.serial
@pytest.mark.parametrize("recipe", RECIPES)
def test_keys_of_a_recipe_exist(recipe):
    given = ["--config", str(RECIPES[recipe])]
    config, _ = configuration.parse(configuration.parser("test", "", configuration.kind_of(given)), given)
    resolved = config.to_dict()
    for section, keys in KEYS[recipe].items():
        for key, value in keys.items() if section != "kind" else ():
            assert resolved[section][key] == value


@pytest.mark.serial
@pytest.mark.parametrize("recipe", RECIPES)
def test_job_scripts_differ_by_name_only(recipe):
    def commands(name: str) -> list[str]:
        lines = (JOBS / f"train_{name}.slurm").read_text().splitlines()
        return [line for line in lines if line.startswith("#SBATCH") or not line.startswith("#")]

    renamed = [line.replace("train_tgn", f"train_{recipe}") for line in commands("tgn")]
    assert commands(recipe) == [line.replace("recipe tgn ", f"recipe {recipe} ") for line in renamed]
