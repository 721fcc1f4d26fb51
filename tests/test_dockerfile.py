"""The Dockerfile, as far as it can be tested without Docker: its sources exist and suffice, its commands are valid."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from dualnet.cli import flags

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "Dockerfile").read_text()
STEPS = [line.split(" ", 1) for line in TEXT.splitlines() if line and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def arguments_of(step: str) -> list[str]:
    return [words for name, words in STEPS if name == step]


def copied() -> list[str]:
    return [source for words in arguments_of("COPY") for source in words.split()[:-1]]


@pytest.mark.parametrize("source", copied())
def test_what_is_copied_exists_and_is_not_ignored(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in (ROOT / ".dockerignore").read_text().split()


def test_what_is_copied_is_all_that_the_wheel_is_made_of() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], *wheel["force-include"]]
    needed += [package.partition("/")[0] for package in wheel["packages"]]
    assert set(needed) <= set(copied())


def test_what_is_installed_is_defined() -> None:
    (words,) = [shlex.split(words) for words in arguments_of("RUN") if words.startswith("pip install")]
    extras = re.fullmatch(r"\.\[(.+)\]", words[-1])
    assert extras is not None and set(extras[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    version = words[-2].removesuffix("+cpu")
    assert version in (ROOT / words[words.index("--constraint") + 1]).read_text().splitlines()


@pytest.mark.parametrize("command", arguments_of("RUN"))
def test_the_commands_are_valid_shell(command: str) -> None:
    subprocess.run(["sh", "-n", "-c", command], check=True)


def test_the_service_is_not_root_and_keeps_its_state_in_the_volume() -> None:
    (command,) = arguments_of("CMD")
    arguments, rest = flags.parse(json.loads(command)[1:])
    assert arguments.command == "serve" and not rest
    assert [str(arguments.state)] == arguments_of("VOLUME")
    assert arguments_of("USER")[-1] not in ("root", "0") and STEPS[-1][0] == "CMD"
    assert arguments.host == "0.0.0.0" and arguments.token_file  # `serve` refuses the address without a token
    assert arguments_of("EXPOSE") == ["8000"]
