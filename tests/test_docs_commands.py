"""Every command of README.md and docs/ runs, on small data."""

from __future__ import annotations

import re

import pytest
from docs_commands import NOT_RUN, Runner, commands, pages

COMMANDS = {page.name: found for page in pages() if (found := commands(page))}


@pytest.mark.serial
def test_what_is_not_run_is_in_the_docs():
    """No reason is left over, and most commands have none."""
    texts = [command.text for found in COMMANDS.values() for command in found]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, text) for text in texts)] == []
    assert sum(not command.reason for found in COMMANDS.values() for command in found) > 0.7 * len(texts)


@pytest.mark.launcher
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", COMMANDS)
def test_commands_of_a_page(page, jobs, tmp_path):
    runner = Runner(tmp_path, page, jobs)
    problems = [f"{command}\n{problem}" for command in COMMANDS[page] if not command.reason
                if (problem := runner.run(command))]  # fmt: skip
    assert not problems, "\n".join(problems)
