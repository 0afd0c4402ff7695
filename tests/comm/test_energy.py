"""Joules that counters of the system give, of folders that stand for its own."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from hpcgnn.comm import energy
from hpcgnn.comm.energy import Counter, EnergyMeter, find_counters

pytestmark = pytest.mark.serial
ZONES = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram",
         "intel-rapl:1": "package-1", "intel-rapl:1:0": "dram", "intel-rapl:2": "psys"}  # fmt: skip
MODULUS = 65_000_000_000  # microjoules


class System:
    """The counters of a machine, in files."""

    def __init__(self, folder):
        self.powercap, self.cray = folder / "powercap", folder / "pm_counters"

    def set_zones(self) -> None:
        for zone, name in ZONES.items():
            folder = self.powercap / zone
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "name").write_text(f"{name}\n")
            (folder / "max_energy_range_uj").write_text(f"{MODULUS}\n")
            (folder / "energy_uj").write_text("0\n")

    def set_machine(self, joules: int) -> None:
        self.cray.mkdir(exist_ok=True)
        (self.cray / "energy").write_text(f"{joules} J 1602697843412 us\n")


@pytest.fixture
def system(tmp_path, monkeypatch):
    made = System(tmp_path)
    monkeypatch.setattr(energy, "POWERCAP", made.powercap)
    monkeypatch.setattr(energy, "CRAY", made.cray)
    return made


@pytest.fixture
def gpus(monkeypatch):
    """A stand-in for NVML with one GPU: its energy in millijoules, by name."""

    class NVMLError(Exception):
        pass

    def handle(uuid: str) -> str:
        if uuid not in millijoules:
            raise NVMLError("Not Found")
        return uuid

    def used(uuid: str) -> int:
        if uuid not in millijoules:
            raise NVMLError("GPU is lost")
        return millijoules[uuid]

    millijoules = {"GPU-1": 5000}
    module = SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetTotalEnergyConsumption=used,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return millijoules


def test_packages_and_memory_count_and_parts_of_packages_do_not(system):
    system.set_zones()
    meter = EnergyMeter(find_counters())
    assert meter.joules() == {"processors": 0, "memory": 0}
    microjoules = {"intel-rapl:0": 3_000_000, "intel-rapl:1": 5_000_000, "intel-rapl:0:1": 1_500_000,
                   "intel-rapl:0:0": 70_000_000, "intel-rapl:2": 90_000_000}  # fmt: skip
    for zone, value in microjoules.items():
        (system.powercap / zone / "energy_uj").write_text(f"{value}\n")
    assert meter.joules() == pytest.approx({"processors": 8, "memory": 1.5})
    assert meter.joules() == pytest.approx({"processors": 8, "memory": 1.5})
    meter.close()


def test_a_counter_that_begins_again(system):
    system.set_zones()
    counter = system.powercap / "intel-rapl:0/energy_uj"
    counter.write_text(f"{MODULUS - 2_000_000}\n")
    meter = EnergyMeter(find_counters())
    counter.write_text("1000000\n")
    assert meter.joules()["processors"] == pytest.approx(3)
    meter.close()


def test_counters_are_read_before_they_can_begin_again_twice(monkeypatch):
    monkeypatch.setattr(energy, "POLL_SECONDS", 0.001)
    reads = []

    def read() -> float:
        reads.append(0.6 * len(reads) % 1)
        return reads[-1]

    meter = EnergyMeter([Counter("processors", read, 1.0)])
    deadline = time.monotonic() + 60
    while len(reads) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    meter.close()
    assert meter.joules()["processors"] == pytest.approx(0.6 * (len(reads) - 1))


def test_the_counter_of_a_whole_machine_is_the_only_one(system, gpus):
    system.set_zones()
    system.set_machine(100)
    meter = EnergyMeter(find_counters(["1"]))
    system.set_machine(130)
    assert meter.joules() == {"machine": 30}
    system.set_machine(7)  # the machine's controller was reset
    assert meter.joules() == {"machine": 30}
    system.set_machine(9)
    assert meter.joules() == {"machine": 32}
    meter.close()


def test_gpus_that_ranks_use(system, gpus):
    meter = EnergyMeter(find_counters(["1", "unknown"]))
    gpus["GPU-1"] += 2500
    assert meter.joules() == {"gpus": 2.5}
    meter.close()


def test_a_part_that_cannot_be_read_any_more_is_left_out(system, gpus):
    system.set_zones()
    meter = EnergyMeter(find_counters(["1"]))
    del gpus["GPU-1"]
    (system.powercap / "intel-rapl:1/energy_uj").unlink()
    assert meter.joules() == {"memory": 0}
    meter.close()


def test_a_system_without_counters(system, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    system.set_zones()
    for zone in ZONES:
        (system.powercap / zone / "energy_uj").unlink()
    meter = EnergyMeter(find_counters(["1"]))
    assert meter.joules() == {}
    meter.close()
