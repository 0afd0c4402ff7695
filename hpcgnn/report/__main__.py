"""Write a self-contained HTML page about runs: curves of loss and metrics, time by stage and rank, bytes between
ranks, starts and resumes. Needs no MPI.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpcgnn.report.page import page
from hpcgnn.report.records import read_run


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="hpcgnn report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders; the others are compared with the first")
    parser.add_argument("--out", type=Path, help="HTML page to write (default: report.html in the first folder)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns exit code 2 for a folder that holds no run."""
    options = make_parser().parse_args(argv)
    out = options.out or options.runs[0] / "report.html"
    try:
        runs = [read_run(folder) for folder in options.runs]
        for problem in [text for run in runs for text in run.damaged]:
            print(f"warning: {problem}; left out", file=sys.stderr)
        out.write_text(page(runs), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (LookupError, TypeError, AttributeError) as error:
        folders = ", ".join(map(str, options.runs))
        print(f"error: {folders}: a line of metrics.jsonl or stages.jsonl is not hpcgnn's ({error})", file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
