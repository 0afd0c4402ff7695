"""Every command of docs/ runs as it stands, page by page; stranger.py runs those of README.md and docs/first_run.md."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from pathlib import Path

import docs_commands
import pytest
from conftest import clean_environment
from docs_commands import NOT_RUN, REPOSITORY, Command, Shell, Shown, commands, name_of, pages, parts
from docs_stand_ins import StandIns
from stranger import agrees, chosen, first_missing

from hpcgnn import train

COMMANDS = {name_of(page): found for page in pages() if (found := commands(page))}
OF_STRANGER = ("README.md", "first_run.md")
LONG = (
    "coming_from.md", "data.md", "evaluate.md", "gpu.md", "index.md", "install.md", "library.md",
    "measurements/accuracy.md", "measurements/data.md", "measurements/index.md", "measurements/questions.md",
    "measurements/scale.md",
    "measurements/snapshots.md", "measurements/static.md", "measurements/temporal.md", "models.md", "own_data.md",
    "own_model.md",
    "partition.md", "performance.md", "recipes.md", "runs.md", "scaling.md", "slurm.md", "snapshots.md", "static.md",
    "static_sampling.md", "tutorials/classify_papers.md", "tutorials/forecast_sensors.md",
    "tutorials/further.md", "tutorials/index.md", "tutorials/knowledge_graph.md", "tutorials/next_week.md",
    "tutorials/pyg_sage.md", "tutorials/recommend_items.md", "tutorials/tgn_on_events.md",
)  # fmt: skip
MOST_HINTS = 41
TRAIN = "hpcgnn train "
# A run folder, several runs, text, a file of the page.
NEEDS_MORE = r" --(resume|each|help\w*|print_config|task\.labels_file|config (?!jobs/))\b"


def asks_a_run(command: Command) -> str:
    """The run folder that a command of a block evaluates or predicts with, or nothing."""
    found = re.search(r"hpcgnn (?:predict|evaluate|export_model) (\S+/)", command.words)
    return found[1] if found and not command.inline and not command.reason else ""


def environment(folder: Path) -> dict[str, str]:
    """What an activated environment sets, and what README.md names for root and more ranks than cores. No rank is bound
    to a core, and one that waits leaves its core to others, as test machines are shared."""
    return clean_environment() | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_btl": "^ofi",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "TMPDIR": str(folder),
    }


@pytest.mark.serial
def test_what_is_not_run_is_in_the_docs():
    """No reason is left over, most commands have none, and few are smaller here."""
    found = [command for page in COMMANDS.values() for command in page]
    run = [command for command in found if not command.reason]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, command.words) for command in found)] == []
    assert len(run) > 0.75 * len(found)
    assert sum(command.small != command.text for command in run) <= MOST_HINTS


@pytest.mark.launcher
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.nightly] * (page in LONG)) for page in COMMANDS if page not in OF_STRANGER],
)
def test_commands_of_a_page(page, tmp_path, capfd):
    for folder in ("jobs", "examples"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)
    stand_ins, shell, problems = StandIns(tmp_path, page), Shell(tmp_path, environment(tmp_path)), []
    for command in COMMANDS[page]:
        if not command.reason:
            start = time.monotonic()
            stand_ins.prepare(command.words)
            code, printed = shell.run(command.small)
            with capfd.disabled():  # tests/run.sh ends a stage that is silent for long
                print(f"\n{command.page}:{command.line} {time.monotonic() - start:.1f} s", end="")
            problems += [f"{command}\nexit code {code}\n{printed[-3000:]}"] * bool(code)
    shell.close()
    assert not problems, "\n\n".join(problems)


@pytest.mark.serial
@pytest.mark.parametrize("page", [page for page in COMMANDS if any(TRAIN in each.words for each in COMMANDS[page])])
def test_training_commands_have_keys_that_are_there(page, tmp_path, monkeypatch):
    """Of all pages, also where a page runs at night: recipes and run files, keys, and values of keys."""
    monkeypatch.chdir(REPOSITORY)
    for command in COMMANDS[page]:
        if TRAIN in command.words and not command.reason and not re.search(NEEDS_MORE, command.words):
            words = shlex.split(command.words.partition(TRAIN)[2])
            train._parse([*words, *([] if "--output.dir" in words else [f"--output.dir={tmp_path}"])])


@pytest.mark.serial
@pytest.mark.parametrize("page", [page for page in COMMANDS if any(asks_a_run(each) for each in COMMANDS[page])])
def test_runs_that_answer_are_made_on_their_page(page):
    """A reader has the run folder that a block of commands reads, by a command before."""
    made = set()
    for command in COMMANDS[page]:
        words = shlex.split(command.words)
        if "--output.dir" in words:
            made.add(words[words.index("--output.dir") + 1])
        asked = asks_a_run(command)
        assert asked in made | {""}, f"{command}: no command above makes {asked}"


@pytest.mark.serial
@pytest.mark.parametrize("program", sorted((REPOSITORY / "examples").glob("own_*.py")), ids=lambda path: path.stem)
def test_first_lines_of_custom_parts_have_a_command_of_their_page(program):
    """Which runs it, for fewer epochs."""
    lines = "\n\n".join(program.read_text().split('"""')[1].split("\n\n")[2:])
    first = docs_commands._of_paragraph(program.name, 1, lines.rstrip("\n"))[0]
    assert "hpcgnn train" in first.words
    assert any(set(first.words.split()) <= set(command.words.split()) for command in COMMANDS["own_model.md"])


@pytest.mark.serial
def test_commands_are_taken_word_for_word(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\nText with `mpirun -np 2\npython -m hpcgnn.train`.\n\n    source x  # here\n"
        "    python -m a \\\n        --b 3\n"
        "\n    shown 3\n\n```python\n    python no\n```\n\n## B\n\n<!-- in tests: 300 -> 3; --c 1 -> --c 2 -->\n\n"
        "    python -m a 300\n    python -m b --c 1\n\nLast `hpcgnn info run/`.\n"
    )
    at = "page.md"
    assert parts(page) == [
        Command(at, 3, "A", "mpirun -np 2 python -m hpcgnn.train", True),
        Command(at, 6, "A", "source x  # here"),
        Command(at, 7, "A", "python -m a \\\n    --b 3"),
        Shown("A", ("shown 3",)),
        Command(at, 20, "B", "python -m a 300", hints=(("300", "3"),)),
        Command(at, 21, "B", "python -m b --c 1", hints=(("--c 1", "--c 2"),)),
        Command(at, 23, "B", "hpcgnn info run/", True),
    ]
    assert parts(page)[2].words == "python -m a --b 3"
    page.write_text("<!-- in tests: 300 -> 3 -->\n\n    python -m a 200\n")
    with pytest.raises(ValueError, match="no command here has"):
        parts(page)


@pytest.mark.serial
def test_files_and_commands_are_blocks_of_their_own():
    """Markdown joins indented blocks that only an empty line is between: a file's lines are none of the commands."""
    for page in docs_commands.pages():
        last = None
        for line, paragraph in docs_commands._paragraphs(page.read_text()):
            found = docs_commands._of_paragraph(page.name, line, paragraph)
            holds_commands = any(isinstance(part, docs_commands.Command) and not part.inline for part in found)
            kind = holds_commands if paragraph.startswith("    ") else None
            assert None in (kind, last) or kind == last, f"{page.name}:{line}: {paragraph}"
            last = kind


def test_the_first_block_and_the_rest():
    """A command of the block that another page repeats has run."""
    both = [REPOSITORY / "README.md", REPOSITORY / "docs/first_run.md"]
    first, rest = (chosen(both, first) for first in (True, False))
    assert [part.text.split("  ")[0] for part in first[:-1]] == ["bash jobs/quickstart.sh", "bash tests/run.sh"]
    assert first[-1].lines[0].startswith("data: built-in")
    left_out = [part for page in both for part in parts(page) if part not in first and part not in rest]
    assert [part.text for part in left_out] == ["bash jobs/quickstart.sh"]


@pytest.mark.serial
def test_one_bash_for_all_commands(tmp_path):
    shell = Shell(tmp_path)
    assert shell.run("export A=3   # kept\ncd /") == (0, "")
    assert shell.run("echo $A \\\n  $PWD; cat") == (0, "3 /\n")
    assert shell.run("echo no line end | tr -d '\\n'; (exit 4)") == (4, "no line end")
    with pytest.raises(TimeoutError, match="nothing came"):
        shell.run("sleep 60", idle_minutes=0.005)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("best epoch 9: test ap 0.7670", "2026-01-02 10:11:12 best epoch 7: test ap 0.7571", True),
        ("best epoch 9: test ap 0.7670", "best epoch 9: test ap 0.7070", False),
        ("epoch 2: loss 1.3, 6.8 s, 2044 events/s", "epoch 2: loss 1.31, 0.1 s, 99 events/s", True),
        ("epoch 2: loss 1.3", "epoch 3: loss 1.3", False),
        ("1,200 nodes", "1,201 nodes", False),
        ("compute     3.1  3.2   3.3  40.1 %", "compute 1.0 2.0 3.0  50.0 %", True),
        ("results in runs/tgn-...", "results in runs/tgn-2026", True),
        ("self-check: fine", "self-check: not fine", False),
    ],
)
def test_output_is_compared(shown, printed, same):
    assert agrees(shown, printed) == same


@pytest.mark.serial
def test_shown_lines_come_in_order():
    assert first_missing(("a", "...", "c"), ["a", "b", "c"]) is None
    assert first_missing(("c", "a"), ["a", "b", "c"]) == "a"
