"""Rows of every kind of graph and way of training: asked to leave in each stage, and long runs."""

from __future__ import annotations

from pathlib import Path

from test_resume import read

from faults.job import Miss
from faults.lab import START_SECONDS, Fault, Lab, check_end
from faults.rows import Row

COMMON = (
    "--train.precision=float64", "--train.log_every=1", "--train.seed=3", "--comm.threads=1", "--comm.device=cpu",
)  # fmt: skip
SAGE = (
    "--kind=static", "--data.synthetic_nodes=300", "--sampling.fanouts=[4,3]", "--model.layers=2", "--model.hidden=8",
    "--train.batch_size=32",
)  # fmt: skip
STATIC_LINKS = (
    "--kind=static", "--task.kind=link", "--data.synthetic_nodes=200", "--sampling.fanouts=[3]", "--model.layers=1",
    "--model.hidden=8", "--train.batch_size=64",
)  # fmt: skip
SNAPSHOTS = (
    "--kind=snapshots", "--data.synthetic_snapshots=12", "--data.synthetic_nodes=40", "--model.kind=tgcn",
    "--model.hidden=8", "--train.batch_size=2",
)  # fmt: skip
TEMPORAL = ("--data.synthetic_events=700", "--memory.dim=8", "--model.time_dim=8", "--model.hidden=8")

WAYS = {
    "mini-batches": SAGE,
    "mini-batches, exact": (*SAGE, "--eval.exact=true", "--eval.nodes_per_pass=50"),
    "a whole graph": (
        "--kind=static", "--data.synthetic_nodes=300", "--train.full_graph=true", "--model.kind=gcn",
        "--model.hidden=8",
    ),
    "static links, ranked": (*STATIC_LINKS, "--eval.ranking=filtered"),
    "snapshots": SNAPSHOTS,
    "snapshots, links": (
        "--kind=snapshots", "--data.synthetic_snapshots=12", "--data.synthetic_nodes=40", "--task.kind=link",
        "--node_embedding.dim=4", "--model.kind=evolvegcn_o", "--model.hidden=8", "--train.batch_size=2",
    ),
    "labels of events": (*TEMPORAL, "--task.kind=edge", "--train.batch_size=50"),
}  # fmt: skip
STAGES = {
    "start-up": ("open", 1), "training": ("step", 3), "a checkpoint": ("file", 2), "validation": ("scores", 1),
    "the test": ("scores", 4),
}  # fmt: skip
LONG = {
    "static": (*SAGE[:2], "--sampling.fanouts=[3]", "--model.layers=1", "--model.hidden=8", "--train.batch_size=300"),
    "whole static": WAYS["a whole graph"],
    "snapshots": (*SNAPSHOTS[:-1], "--train.batch_size=12"),
}


def asked_in(way: str, stage: str) -> Row:
    """A row: a rank of a run of that way is asked to leave in that stage, and the run goes on."""
    point, number = ("chunk", 2) if stage == "inference" else STAGES[stage]
    # Rank 0 writes files in any case; the others where they keep rows.
    fault = Fault(point, number, int(point != "file"), "SIGTERM", (75,), "stop requested")

    def row(lab: Lab, folder: Path, _: list[dict]) -> str:
        first = (*WAYS[way], *COMMON, "--train.epochs=3", "--train.checkpoint_every=2")
        reference = reference_of(lab, way, first)
        line = lab.meet(folder, 2, fault, first)
        if not any(folder.glob("checkpoints/step-*/manifest.json")):
            raise Miss(f"{folder}: asked to leave, and no checkpoint is there")
        lab.finish(folder, 3, reference)
        return line

    return row


def reference_of(lab: Lab, way: str, first: tuple[str, ...]) -> list[dict]:
    """The lines of a run of that way that nothing disturbed, which is made when it is first asked for."""
    folder = lab.root / f"undisturbed {way}".replace(" ", "-").replace(",", "")
    with lab.turns:
        if not (folder / "finished").exists():
            with lab.job(folder, 2, *lab.watched(False), first=first) as job:
                check_end(job, job.wait(START_SECONDS), (0,))
    return read(folder)


def kind_rows() -> dict[str, Row]:
    """The rows of all ways and stages, by name."""
    rows = {f"asked to leave in {stage}: {way}": asked_in(way, stage) for way in WAYS for stage in STAGES}
    exact = "mini-batches, exact"
    return rows | {f"asked to leave in inference: {exact}": asked_in(exact, "inference")}
