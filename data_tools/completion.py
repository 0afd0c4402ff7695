"""Print the completion of hpcgnn's commands and options for a shell.

    hpcgnn completion bash > ~/.local/share/bash-completion/completions/hpcgnn
    hpcgnn completion zsh > ~/.zfunc/_hpcgnn        # a folder of zsh's fpath

Needs shtab (`pip install shtab`).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any

from data_tools.cli import ToolParser, run_alone, with_exit_code
from hpcgnn.__main__ import COMMANDS, TOOLS
from hpcgnn.bench.__main__ import COMMANDS as BENCHES
from hpcgnn.keys import keys
from hpcgnn.kinds import KINDS

SHELLS = ("bash", "zsh", "tcsh")
WITH_KEYS = ("train", "bench")
PARTS = ("", ".command", ".__main__")  # of a command, where its make_parser may be


def parser_of(command: str) -> argparse.ArgumentParser:
    """Make the parser of a command."""
    if command == "bench":
        parser = argparse.ArgumentParser()
        parser.add_argument("benchmark", choices=tuple(BENCHES), help="benchmark to run")
        return parser
    package = f"{'data_tools' if command in TOOLS else 'hpcgnn'}.{command}"
    for part in PARTS:
        if importlib.util.find_spec(package + part):
            module = importlib.import_module(package + part)
            if hasattr(module, "make_parser"):
                return module.make_parser()
    raise AssertionError(f"{package} has no make_parser")


def parser_of_all() -> argparse.ArgumentParser:
    """Make a parser whose commands have the options that each command has."""
    every = argparse.ArgumentParser(prog="hpcgnn")
    commands = every.add_subparsers()
    for name, text in COMMANDS.items():
        one = commands.add_parser(name, help=text)
        for action in parser_of(name)._actions:
            if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
                continue
            if name in WITH_KEYS and "." in action.dest:
                continue  # a key of run files
            options: dict[str, Any] = {"nargs": action.nargs} if action.nargs not in (None, argparse.PARSER) else {}
            known: dict[str, Any] = {"choices": list(action.choices)} if action.choices else {}
            title = (action.help or "").split(";")[0].replace("%", "%%")
            if action.nargs == 0:
                one.add_argument(*action.option_strings, action="store_true", help=title)
            elif action.option_strings:
                one.add_argument(*action.option_strings, help=title, **options, **known)
            else:
                one.add_argument(action.dest, help=title, **options, **known)
        if name in WITH_KEYS:
            add_keys(one)
    return every


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Declare the keys of run files on all kinds of graphs, with the choices of all kinds."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for key in (key for kind in KINDS for key in keys(kind)):
        text, choices = found.get(key.name, (key.text, {}))
        found[key.name] = text, choices | key.choices
    for name, (text, choices) in found.items():
        known: dict[str, Any] = {"choices": [word for word in choices if word]} if choices else {}
        parser.add_argument(f"--{name}", help=text.split(". ")[0].replace("%", "%%"), **known)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("completion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")
    return parser


@with_exit_code
def main(argv: list[str] | None = None) -> int:
    """Print a shell's completion. Raises ValueError without shtab."""
    shell = make_parser().parse_args(argv).shell
    try:
        import shtab
    except ImportError:
        raise ValueError("completion needs shtab: pip install shtab") from None
    print(shtab.complete(parser_of_all(), shell))
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
