"""Which build of the kernels a process loads, and the builds that are refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import hpcgnn_native
import pytest
from conftest import REPOSITORY
from hpcgnn_native import facts

import hpcgnn
from hpcgnn.native import build

pytestmark = pytest.mark.serial

V3, V4 = "x86_64_v3", "x86_64_v4"


@pytest.mark.parametrize(
    ("builds", "levels", "name"),
    [
        ((V3, V4), [V3, V4], V4),
        ((V3, V4), [V3], V3),
        ((V3,), [V3, V4], V3),
        (("any",), [], "any"),
        (("native",), [V3, V4], "native"),
        (("native",), [], "native"),
    ],
)
def test_the_best_build_that_runs_is_chosen(monkeypatch, builds, levels, name):
    monkeypatch.setattr(hpcgnn_native, "BUILDS", builds)
    assert hpcgnn_native.choose(levels) == name


def test_products_are_rounded_before_they_are_added():
    """On the host and on the device: their sums are equal bit for bit."""
    text = (REPOSITORY / "CMakeLists.txt").read_text()
    builds = r"target_compile_options\((\$\{name\} BEFORE|cuda|emulated) PRIVATE([^)]*)\)"
    options = dict(re.findall(builds, text))
    assert len(options) == 3
    assert "-fmad=false" in options.pop("cuda")
    assert all("-ffp-contract=off" in of_host for of_host in options.values())


def test_a_processor_that_runs_no_build_is_told_the_remedy(monkeypatch):
    monkeypatch.setattr(hpcgnn_native, "BUILDS", (V3, V4))
    with pytest.raises(
        ImportError, match=r"built for x86_64_v3, x86_64_v4, which this .*define.HPCGNN_NATIVE_ARCH=ON \."
    ):
        hpcgnn_native.choose([])


def test_a_build_for_one_processor_refuses_others(monkeypatch):
    monkeypatch.setattr(hpcgnn_native, "BUILT_ON_SETS", "avx avx2 avx512f fma hypervisor")
    hpcgnn_native.check_native(["avx", "avx2", "avx512bw", "avx512f", "fma"])
    with pytest.raises(ImportError, match=r"lacks avx512f: build them without that option"):
        hpcgnn_native.check_native(["avx", "avx2", "fma"])


def test_an_unknown_build_is_refused():
    with pytest.raises(ImportError, match="no build 'x86_64_v9'"):
        hpcgnn_native.use("x86_64_v9")


@pytest.fixture
def checkout(tmp_path):
    """A copy of all that the kernels are made from."""
    shutil.copytree(REPOSITORY / "native", tmp_path / "native")
    shutil.copy(REPOSITORY / "CMakeLists.txt", tmp_path)
    return tmp_path


def test_a_build_of_these_sources_is_accepted(checkout):
    hpcgnn_native.check_source(checkout)
    (checkout / "native" / "notes.txt").write_text("of no concern to a compiler")
    (checkout / "native" / "package" / "__pycache__").mkdir(exist_ok=True)
    hpcgnn_native.check_source(checkout)


@pytest.mark.parametrize("change", ["edit", "rename", "add", "remove"])
def test_a_stale_build_is_refused_with_the_command_that_repairs_it(checkout, change):
    path = checkout / "native" / "cpu" / "adam.cpp"
    if change == "edit":
        path.write_text(path.read_text() + "\n")
    elif change == "rename":
        path.rename(path.with_name("adams.cpp"))
    elif change == "add":
        shutil.copy(path, path.with_name("eve.cpp"))
    else:
        path.unlink()
    with pytest.raises(ImportError, match=rf"built from other sources than those in {checkout}: run 'pip install "):
        hpcgnn_native.check_source(checkout)


def test_commands_end_with_one_sentence(tmp_path):
    """And no traceback, where the compiled modules are missing or stale."""
    for folder in ("hpcgnn", "native", "CMakeLists.txt"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)
    broken = "raise ImportError('the sentence')"
    (tmp_path / "hpcgnn_native.py").write_text(broken)
    program = (
        "import sys, runpy; sys.meta_path[:] = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]; "
        f"sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['info']; runpy._run_module_as_main('hpcgnn.info', False)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, "error: the sentence\n")


def test_missing_kernels_are_told_with_the_remedy(monkeypatch):
    """Another module that they lack is told as it is."""
    monkeypatch.setitem(sys.modules, "hpcgnn_native", None)
    with pytest.raises(ImportError, match=r"native kernels are not installed: run 'pip install \.' in a checkout"):
        build._load()

    def lack(name):
        raise ModuleNotFoundError("no libx", name="libx")

    monkeypatch.setattr(build.importlib, "import_module", lack)
    with pytest.raises(ModuleNotFoundError, match="no libx"):
        build._load()


def test_facts_name_the_processor():
    name, sets = facts.processor()
    assert name
    assert sets == sorted(sets)
    assert (name, sets) == hpcgnn_native.processor()


def test_a_package_in_a_clone_is_checked_against_it():
    assert build.CHECKOUT == Path(hpcgnn.__file__).parents[1]
