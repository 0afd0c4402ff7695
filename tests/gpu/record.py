"""What check.sh needs besides bash: records of its stages, a comparison of two runs, a smaller wheel of UCX."""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Libraries of UCX and its modules for memory and transport within a node; the wheel has each three times, and tools.
NEEDED = (
    "libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0", "libucs_signal.so.0", "libuct_cuda.so",
    "libuct_cuda.so.0", "libucm_cuda.so", "libucm_cuda.so.0", "libuct_cma.so", "libuct_cma.so.0",
)  # fmt: skip
KEPT = (".py", "METADATA", "WHEEL")


def output(*command: str) -> str:
    """The first line that a command prints; empty where it is missing or fails."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.partition("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return ""


def version(package: str) -> str:
    """Of an installed package; empty where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def commit() -> str:
    """Of the checkout, or of the one that was packed."""
    packed = ROOT / "build/gpu/wheels/commit"
    return output("git", "rev-parse", "HEAD") or (packed.read_text().strip() if packed.exists() else "unknown")


def machine() -> dict[str, str]:
    """What a figure depends on."""
    gpu, _, driver = output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").partition(", ")
    mpirun = Path(sys.executable).parent / "mpirun"
    return {
        "gpu": gpu, "driver": driver, "torch": version("torch"), "python": platform.python_version(),
        "mpi": output(str(mpirun if mpirun.exists() else "mpirun"), "--version"), "ucx": version("libucx-cu13"),
        "pyg": version("torch-geometric"), "host": platform.platform(), "commit": commit(),
    }  # fmt: skip


def write_stage(out: Path, stage: str, code: int, seconds: int, dry: bool) -> None:
    """Write the JSON of a stage, with the figures that its commands left in ``out``/parts."""
    parts = {path.name.split(".")[1]: path for path in sorted((out / "parts").glob(f"{stage}.*.json"))}
    now = time.strftime("%FT%TZ", time.gmtime())
    record: dict = {"stage": stage, "exit_code": code, "seconds": seconds, "dry": dry, "time": now} | machine()
    record["figures"] = {name: json.loads(path.read_text()) for name, path in parts.items()}
    if code:
        log = out / f"{stage}.log"
        record["log"] = log.read_text(errors="replace").splitlines()[-20:] if log.exists() else []
    (out / f"{stage}.json").write_text(json.dumps(record, indent=1) + "\n")


def numbers(path: Path) -> list[tuple[str, float | None]]:
    """The losses and metrics of a run's metrics.jsonl, in order; None: there was nothing to measure."""
    lines = map(json.loads, path.read_text().splitlines())
    return [
        (name, value) for line in lines for name, value in line.items()
        if name == "loss" or name.startswith(("val_", "test_"))
    ]  # fmt: skip


def is_close(one: tuple[str, float | None], other: tuple[str, float | None]) -> bool:
    """Whether two named numbers are the same to rounding."""
    (name, value), (other_name, other_value) = one, other
    if name != other_name or value is None or other_value is None:
        return one == other
    return math.isclose(value, other_value, rel_tol=1e-9)


def compare(one: Path, other: Path) -> int:
    """Say whether two float64 runs have the same losses and metrics to rounding; returns the exit code."""
    pairs = list(zip(numbers(one), numbers(other), strict=True))
    differing = [pair for pair in pairs if not is_close(*pair)]
    print(f"{len(pairs)} losses and metrics of two runs, {len(differing)} differ", *differing, sep="\n  ")
    return int(not pairs or bool(differing))


def repack(wheel: Path, folder: Path) -> None:
    """Write a wheel of UCX without its tools, headers and second copies: a tenth of its size."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(folder / wheel.name, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            name = entry.filename.rpartition("/")[2]
            if name.endswith(KEPT) or name in NEEDED or name.startswith("libcudart-"):
                with source.open(entry) as read, target.open(entry.filename, "w") as write:
                    shutil.copyfileobj(read, write)
        info = next(name for name in source.namelist() if name.endswith("/RECORD"))
        target.writestr(info, "".join(f"{name},,\n" for name in [*target.namelist(), info]))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    stage = commands.add_parser("stage")
    stage.add_argument("out", type=Path)
    stage.add_argument("stage")
    stage.add_argument("code", type=int)
    stage.add_argument("seconds", type=int)
    stage.add_argument("--dry", action="store_true")
    for name, values in (("compare", ("one", "other")), ("repack", ("wheel", "folder"))):
        command = commands.add_parser(name)
        for value in values:
            command.add_argument(value, type=Path)
    options = vars(parser.parse_args(argv))
    command = options.pop("command")
    return {"stage": write_stage, "compare": compare, "repack": repack}[command](**options) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
