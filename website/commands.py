"""The page of the commands, from their parsers."""

import argparse
import os

from dualnet.cli import flags

INTRODUCTION = """# Commands

`dualnet COMMAND --help` prints the same, and `dualnet list` the names of all experiments, learners and benchmarks.
`dualnet --version` prints the version, `dualnet --print-completion bash` (zsh, tcsh) a script that completes commands.
"""


def commands() -> str:
    subparsers = flags.make_parser()[1]
    summaries = {action.dest: action.help for action in subparsers._get_subactions()}
    return "\n".join([INTRODUCTION, *(section(name, summaries[name], subparsers.choices[name]) for name in summaries)])


def section(name: str, summary: str | None, command: argparse.ArgumentParser) -> str:
    os.environ["COLUMNS"] = "88"  # of the usage
    usage = command.format_usage().removeprefix("usage: ").replace("\n       ", "\n")
    rows = [row(action) for action in command._actions if action.dest != "help"]
    table = "\n".join(["| | |", "| --- | --- |", *rows])
    return f"## dualnet {name}\n\n{sentence(summary)}\n\n```text\n{usage}```\n\n{table}\n\n{sentence(command.epilog)}\n"


def row(action: argparse.Action) -> str:
    values = "|".join(action.choices) if action.choices else action.metavar or action.dest.upper()
    flag = ", ".join(action.option_strings)
    words = [flag, "" if action.nargs == 0 else str(values)] if flag else [str(values)]
    return f"| `{' '.join(filter(None, words))}` | {sentence(action.help)} |"


def sentence(text: str | None) -> str:
    """On one line, with marks that Markdown would read as HTML or as a column left as they are."""
    text = " ".join((text or "").replace("%%", "%").split())
    return (text[:1].upper() + text[1:]).replace("<", "&lt;").replace("|", "\\|")
