"""What a build of the kernels says about itself: the sources it was made from, and the processor it was made on.

CMake runs this file, and it is installed beside the compiled modules, so that both count the same.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from pathlib import Path

SUFFIXES = {".h", ".cuh", ".cpp", ".cu", ".py"}


def source_digest(root: Path) -> str:
    """SHA-256 of all that the compiled modules are made from, in a checkout's root folder: names and contents."""
    files = [path for path in (root / "native").rglob("*") if path.suffix in SUFFIXES]
    digest = hashlib.sha256()
    for path in sorted([root / "CMakeLists.txt", *files]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def processor() -> tuple[str, list[str]]:
    """Name of this machine's processor and, where Linux tells them, its instruction sets."""
    described: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                described[name.strip()] = value.strip()
                if not line.strip():  # one processor is enough
                    break
    except OSError:
        pass
    sets = described.get("flags", described.get("Features", "")).split()
    return described.get("model name") or platform.machine(), sorted(sets)


if __name__ == "__main__":
    name, sets = processor()
    print(f"SOURCE = {source_digest(Path(sys.argv[1]))!r}")
    print(f"BUILT_ON = {name!r}")
    print(f"BUILT_ON_SETS = {' '.join(sets)!r}")
