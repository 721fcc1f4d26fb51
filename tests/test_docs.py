"""The documents name everything that is registered, their commands exist, and their links lead somewhere."""

import dataclasses
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from dualnet.cli import flags
from dualnet.data.benchmarks import BENCHMARKS
from dualnet.experiments import experiment
from dualnet.experiments.named_files import shipped_files
from dualnet.learners import LEARNERS
from dualnet.memory import MEMORIES, MemoryConfig
from dualnet.objectives import OBJECTIVES
from dualnet.reproduce import shipped_tables
from dualnet.stream.stream import Protocol

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
COMMANDS = flags.make_parser()[1].choices


def words_of(page: str) -> set[str]:
    """What stands in code quotes, `learner.slow.beta` as `beta`, and its section, too."""
    quoted = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())
    return {word for text in quoted for word in (text, text.partition(".")[0], text.rpartition(".")[2])}


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_has_a_page_with_all_of_its_options(name: str) -> None:
    page = f"docs/learners/{name}.md"
    assert {field.name for field in dataclasses.fields(LEARNERS[name].Config)} <= words_of(page)
    assert f"({page})" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/objectives.md", OBJECTIVES),
        ("docs/benchmarks.md", BENCHMARKS),
        ("docs/learners/er.md", MEMORIES),
        ("docs/learners/er.md", [field.name for field in dataclasses.fields(MemoryConfig)]),
        ("docs/protocols.md", get_args(Protocol)),
        ("docs/reproduce.md", [f"{table}.yaml" for table in shipped_tables()]),
    ],
)
def test_every_name_is_documented(page: str, names: object) -> None:
    assert set(names) - words_of(page) == set()  # pyright: ignore


def test_every_package_is_on_the_map() -> None:
    tops = [path for path in (ROOT / "src/dualnet").iterdir() if path.is_dir() or path.suffix == ".py"]
    tops = [path for path in tops if not path.name.startswith("__")]
    page = (ROOT / "docs/architecture.md").read_text()
    assert not [path.name for path in tops if f"`{path.name}{'/' if path.is_dir() else ''}`" not in page]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def commands_in(page: Path) -> list[list[str]]:
    """The command lines of `dualnet` in the blocks of code of a page, as words after the name of the program."""
    blocks = [code for _, language, code in BLOCK.findall(page.read_text()) if language in ("", "sh")]
    lines = [line for code in blocks for line in code.replace("\\\n", " ").splitlines()]
    matches = [re.fullmatch(r"\s*(?:\w+=\S+ )*dualnet (.*)", line) for line in lines]
    return [shlex.split(re.split(r" [|>&]| -- ", line[1])[0], comments=True) for line in matches if line]


def mentions_in(page: Path) -> list[list[str]]:
    """The commands within sentences, which may be incomplete: `dualnet predict --task N`."""
    text = BLOCK.sub("", page.read_text())
    return [code.split()[1:] for code in re.findall(r"`([^`]+)`", text) if code.startswith("dualnet ")]


LINES = [(page, words) for page in PAGES for words in commands_in(page)]
MENTIONS = [(page, words) for page in PAGES for words in mentions_in(page)]


@pytest.mark.parametrize(("page", "words"), LINES, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_the_commands_of_the_documents_are_valid(page: Path, words: list[str]) -> None:
    """All flags and names exist; of an experiment that is shipped, also the options and their values."""
    arguments, rest = flags.parse(words)
    options = experiment.command_options(rest, arguments.flags)
    shipped = [path.stem for path in shipped_files()]
    if arguments.command == "run" and arguments.experiment in shipped:
        experiment.read(arguments.experiment, options)
    elif arguments.command == "run":
        assert arguments.experiment.endswith((".yaml", ".yml"))
    elif arguments.command == "learn":
        learner = {"name": "dualnet", **options.pop("learner", {})}
        experiment.parse({"name": "x", "benchmark": {"name": "procedural"}, "learner": learner})
        assert not options
    elif arguments.command == "reproduce" and arguments.table:
        assert arguments.table in (*shipped_tables(), "all") or arguments.table.endswith(".yaml")
    elif arguments.command == "search":
        names = [path.stem for path in shipped_files("search")]
        assert arguments.search in names or arguments.search.endswith(".yaml")


def test_every_command_is_shown() -> None:
    assert {words[0] for _, words in LINES} == set(COMMANDS)


@pytest.mark.parametrize(("page", "words"), MENTIONS)
def test_the_commands_within_sentences_exist(page: Path, words: list[str]) -> None:
    if words[0].startswith("--"):
        return
    parser = COMMANDS[words[0]]
    known = [flag for action in parser._actions for flag in action.option_strings]
    assert not [word for word in words[1:] if word.startswith("--") and "." not in word and word not in known]
