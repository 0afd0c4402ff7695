"""``python -m hpcgnn.evaluate run/``: validation and test of a run's best epoch, on any number of ranks.

By the run's own protocol, or with ``--eval`` by another one; with ``--baseline`` what a heuristic scores there.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial

import jsonargparse

from hpcgnn.comm.world import World
from hpcgnn.loop import launch
from hpcgnn.loop.logs import without_nan
from hpcgnn.loop.session import BaseSession, split_metrics
from hpcgnn.loop.settings import Sections
from hpcgnn.reopen import command_parser, load_best, open_session, parse
from hpcgnn.temporal.baseline import baseline_metrics
from hpcgnn.temporal.config import BASELINES, NEGATIVE_KINDS, BaselineConfig, RunConfig
from hpcgnn.temporal.session import Session


def main(world: World, argv: list[str]) -> int:
    """Collective. Prints one JSON object on rank 0."""
    arguments, comm = parse(_parser(), argv, world)
    change = partial(_changed, arguments)
    with open_session(arguments.run, arguments.data.path, comm, world, change) as session:
        result = _evaluate(session, arguments.run) | session.protocol()
    if world.rank == 0:
        print(json.dumps(without_nan(result)))
    return launch.EXIT_DONE


def _parser() -> jsonargparse.ArgumentParser:
    parser = command_parser("python -m hpcgnn.evaluate", __doc__)
    parser.add_argument(
        "--eval", choices=("", "tgb", *NEGATIVE_KINDS), default="", help="another protocol, or other negatives"
    )
    parser.add_argument("--negatives_file", type=str, default="", help="fixed negatives, for --eval file and tgb")
    parser.add_argument("--baseline", choices=("", *BASELINES), default="", help="EdgeBank in place of the model")
    return parser


def _changed(arguments: jsonargparse.Namespace, config: Sections) -> Sections:
    """Raises ValueError."""
    if not isinstance(config, RunConfig):
        if arguments.eval or arguments.negatives_file or arguments.baseline:
            raise ValueError("--eval, --negatives_file and --baseline are for runs on temporal graphs")
        return config
    if arguments.negatives_file and not arguments.eval:
        raise ValueError("--negatives_file needs --eval file or --eval tgb")
    if arguments.eval:
        config = replace(config, eval=config.eval.under(arguments.eval, arguments.negatives_file))
    if arguments.baseline:
        config = replace(config, baseline=BaselineConfig(arguments.baseline, config.baseline.share))
    return config


def _evaluate(session: BaseSession, folder: str) -> dict:
    """Collective."""
    result, config = {"kind": "evaluate", "ranks": session.world.size}, session.config
    if isinstance(session, Session) and config.baseline.kind:
        return result | {"baseline": config.baseline.kind} | baseline_metrics(session, config.baseline)
    result["epoch"] = load_best(session, folder).epoch
    for split in ("val", "test"):
        metrics = split_metrics(session, split, session.scores(split))
        result |= {f"{split}_{name}": value for name, value in metrics.items()}
    return result


if __name__ == "__main__":
    sys.exit(launch.run(main))
