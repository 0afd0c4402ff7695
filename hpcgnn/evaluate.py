"""Validate and test the best epoch of a run, on any number of ranks; prints a line of JSON.

The protocol is the protocol of the run. On temporal graphs `--eval tgb`, short for `--eval.protocol tgb`, chooses
another one, and `--baseline.kind` scores a rule in place of the model. On static and snapshot graphs `--eval.exact`,
`--eval.ranking` and `--eval.negatives` do. `--eval.train_split true` also scores the training split.
`--eval.correct_and_smooth true` corrects outputs of nodes by the labels of training nodes.
`--eval.negatives_file` names other given negatives. On static graphs `--sampling.eval_fanouts` changes the fanouts.
The run itself stays as it is.
"""

from __future__ import annotations

import json
import re
import sys

import jsonargparse

from hpcgnn.comm.world import World
from hpcgnn.graph.negative_file import sha256_of
from hpcgnn.kinds import KINDS, kind_of
from hpcgnn.loop import launch
from hpcgnn.loop.logs import without_nan
from hpcgnn.loop.session import Session, scored_splits, split_metrics
from hpcgnn.loop.settings import EVAL_OPTIONS, Sections
from hpcgnn.reopen import command_parser, load_best, open_session, parse

DRAWN = "drawn"  # the word for eval.ranking empty, which a command line hides


def main(world: World, argv: list[str]) -> int:
    """Collective. Evaluate, and print one JSON object on rank 0; returns the exit code."""
    result = evaluate(world, argv)
    if world.rank == 0:
        print(json.dumps(without_nan(result)))
    return launch.EXIT_DONE


def evaluate(world: World, argv: list[str]) -> dict:
    """Collective. Evaluate as a command line asks; returns metrics and protocol by name."""
    argv = [re.sub("^--eval(?==|$)", "--eval.protocol", word) for word in argv]
    arguments, comm = parse(make_parser(), argv, world)

    changes = {name: value for name in EVAL_OPTIONS if (value := arguments.eval[name]) is not None}
    fanouts = arguments.sampling.eval_fanouts

    def change(config: Sections) -> Sections:
        values = {name: "" if value == DRAWN else value for name, value in changes.items()}
        changed = config.evaluated_by(
            arguments.eval.protocol, arguments.eval.negatives_file, arguments.baseline.kind, values
        )
        return changed if fanouts is None else changed.sampled_by(fanouts)

    file = arguments.eval.negatives_file
    with open_session(arguments.run, arguments.data.path, comm, world, change, arguments.data.stage_to) as session:
        sha256 = launch.on_first_rank(session.world, "read the negatives", lambda: sha256_of(file))
        given: dict = {"negatives_file": file, "negatives_sha256": sha256} if file else {}
        given |= {} if fanouts is None else {"eval_fanouts": fanouts}
        return _evaluate(session, arguments.run) | session.goal.protocol() | changes | given


def make_parser() -> jsonargparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = command_parser("hpcgnn evaluate", __doc__)
    protocols = [word for kind in KINDS.values() for word in kind.protocols]
    baselines = dict.fromkeys(word for kind in KINDS.values() for word in kind.baselines)
    text = "evaluation protocol or kind of negatives; short form: --eval; empty: the run's"
    parser.add_argument("--eval.protocol", choices=("", *protocols), default="", help=text)
    text = (
        "file of fixed negatives: on temporal graphs for --eval file and --eval tgb, on static graphs for "
        "--eval.ranking pooled and listed; empty: the run's"
    )
    parser.add_argument("--eval.negatives_file", type=str, default="", help=text)
    for name, (kind, help) in EVAL_OPTIONS.items():
        parser.add_argument(f"--eval.{name}", type=kind, default=None, help=f"{help}; null: as in the run")
    text = "fanouts of validation and test, one number a layer; []: as in training; static graphs; null: as in the run"
    parser.add_argument("--sampling.eval_fanouts", type=list[int] | None, default=None, help=text)
    text = "baseline to evaluate in place of the model; empty: the model"
    parser.add_argument("--baseline.kind", choices=("", *baselines), default="", help=text)
    return parser


def _evaluate(session: Session, folder: str) -> dict:
    """Collective. Compute the metrics of all scored splits, of the model or of the baseline."""
    result, config = {"kind": "evaluate", "ranks": session.world.size}, session.config
    if config.baseline_name:
        score = kind_of(config).score_baseline
        assert score is not None
        return result | {"baseline": config.baseline_name} | score(session, config.baseline)
    result["epoch"] = load_best(session, folder).epoch
    for split, prefix in scored_splits(session).items():
        metrics = split_metrics(session, split, session.scores(split))
        result |= {f"{prefix}_{name}": value for name, value in metrics.items()}
    return result


if __name__ == "__main__":
    sys.exit(launch.run(main))
