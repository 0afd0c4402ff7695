"""Write a self-contained HTML page about runs: curves of loss and metrics, time by stage and rank, bytes between
ranks, starts and resumes. Several runs are compared: the keys in which they differ, and the mean and standard deviation
of metrics over runs that differ by their seed only, also as a table of text or CSV. Needs no MPI.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpcgnn.loop.sweep_file import begun, run_folders
from hpcgnn.report.compare import compare, csv_table, default_page, notes, text_table
from hpcgnn.report.page import page
from hpcgnn.report.records import RunRecords, read_run


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="hpcgnn report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or of sweeps, which stand for their runs")
    parser.add_argument(
        "--format", choices=("html", "text", "csv"), default="html",
        help="html: the page, and the table of text for several runs; text, csv: the table alone",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path,
        help="file to write (default: the page report.html in the only folder, or for several folders in the current "
        "one; tables are printed)",
    )  # fmt: skip
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns exit code 2 for a folder that holds no run."""
    options = make_parser().parse_args(argv)
    try:
        _report(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (LookupError, TypeError, AttributeError) as error:
        folders = ", ".join(map(str, options.runs))
        print(f"error: {folders}: a line of metrics.jsonl or stages.jsonl is not hpcgnn's ({error})", file=sys.stderr)
        return 2
    return 0


def _report(options: argparse.Namespace) -> None:
    """Write the page, or a table, and print the place of a file. Raises ValueError or OSError."""
    # Of a sweep's folder, sweep/* names its files, too.
    folders = [path for path in options.runs if not path.is_file()] or options.runs
    runs = [run for folder in folders for run in _read(folder)]
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = str(run.folder)
    for problem in [text for run in runs for text in run.damaged]:
        print(f"warning: {problem}; left out", file=sys.stderr)
    comparison = compare(runs)
    if options.format == "html":
        out = options.out or default_page(folders)
        out.write_text(page(runs, comparison), encoding="utf-8")
        if len(runs) > 1:
            print(text_table(comparison))
        print(out)
        return
    table = f"{text_table(comparison)}\n"
    if options.format == "csv":
        table = csv_table(comparison)
        print("\n".join(notes(comparison)), file=sys.stderr)
    if options.out:
        options.out.write_text(table, encoding="utf-8")
        print(options.out)
    else:
        print(table, end="")


def _read(folder: Path) -> list[RunRecords]:
    """Read a run, or the runs of a sweep that have begun. Raises ValueError where there is none."""
    runs = run_folders([folder])
    if runs != [folder] and begun(runs):
        for run in [run for run in runs if run not in begun(runs)]:
            print(f"warning: {run} has not begun; left out", file=sys.stderr)
        runs = begun(runs)
    return [read_run(run) for run in runs]


if __name__ == "__main__":
    sys.exit(main())
