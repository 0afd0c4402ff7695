"""The energy that a machine has used, in joules, as counters of its system say it.

Counters are of a whole machine, whoever else runs there: the ones of HPE Cray (``pm_counters``), which have all of a
machine in one number, or else RAPL's (Linux' ``powercap``) of the processors and their memory, which many systems let
root alone read, and NVML's of the GPUs that its ranks use, through ``pynvml``.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

CRAY, POWERCAP = Path("/sys/cray/pm_counters"), Path("/sys/class/powercap")
MACHINE, PROCESSORS, MEMORY, GPUS = "machine", "processors", "memory", "gpus"
ZONES = {"package": PROCESSORS, "dram": MEMORY}  # parts by the first word of the name of a zone of RAPL
POLL_SECONDS = 30.0  # a counter of RAPL begins again after 65 kJ, which 400 W need 160 s for


@dataclass(slots=True)
class Counter:
    """A counter of a part of a machine. read: joules since some time; modulus: joules at which it begins again."""

    part: str
    read: Callable[[], float]
    modulus: float = math.inf
    newest: float = field(init=False)

    def __post_init__(self) -> None:
        self.newest = self.read()

    def advance(self) -> float:
        """Return the joules since the last call. Raises OSError or ValueError where the counter is gone."""
        before, self.newest = self.newest, self.read()
        if self.newest >= before:
            return self.newest - before
        return self.newest - before + self.modulus if self.modulus < math.inf else 0.0  # begun anew by a reset


class EnergyMeter:
    """Adds up the joules of ``counters`` by part from now on; a thread reads them before they can begin again."""

    def __init__(self, counters: Iterable[Counter]):
        self._counters, self._lock, self._closed = list(counters), threading.Lock(), threading.Event()
        self._joules = dict.fromkeys((counter.part for counter in self._counters), 0.0)
        if self._counters:
            threading.Thread(target=self._poll, name="energy", daemon=True).start()

    def joules(self) -> dict[str, float]:
        """Return the joules of each part so far; a part is left out once a counter of it cannot be read."""
        with self._lock:
            lost = set()
            for counter in self._counters:
                try:
                    self._joules[counter.part] += counter.advance()
                except (OSError, ValueError):
                    lost.add(counter.part)
            self._counters = [counter for counter in self._counters if counter.part not in lost]
            self._joules = {part: joules for part, joules in self._joules.items() if part not in lost}
            return dict(self._joules)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _poll(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            self.joules()


def find_counters(gpus: Iterable[str] = ()) -> list[Counter]:
    """Open the counters of this machine that can be read, none where there are none. gpus: UUIDs of the GPUs that
    count, as torch writes them."""
    machine = _opened([partial(Counter, MACHINE, partial(_cray_joules, CRAY / "energy"))])
    zones = [partial(_open_zone, zone) for zone in sorted(POWERCAP.glob("intel-rapl:*"))]
    return machine or _opened([*zones, *(partial(_open_gpu, uuid) for uuid in gpus)])


def _opened(makers: Iterable[Callable[[], Counter]]) -> list[Counter]:
    found = []
    for make in makers:
        with contextlib.suppress(OSError, ValueError, LookupError, ImportError):
            found.append(make())
    return found


def _cray_joules(path: Path) -> float:
    """Read a line such as ``34875 J 1602697843412 us``."""
    return float(path.read_text().split()[0])


def _open_zone(zone: Path) -> Counter:
    """Open a zone of RAPL. Raises KeyError for one that is neither a package nor memory, such as a package's cores."""
    part = ZONES[(zone / "name").read_text().strip().split("-")[0]]
    return Counter(part, partial(_microjoules, zone / "energy_uj"), _microjoules(zone / "max_energy_range_uj"))


def _microjoules(path: Path) -> float:
    return int(path.read_text()) / 1e6


def _open_gpu(uuid: str) -> Counter:
    import pynvml

    def read() -> float:
        try:
            return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except pynvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from error
    return Counter(GPUS, read)
