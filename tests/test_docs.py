"""The documents name everything that is registered, and their links lead somewhere."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from dualnet.cli import flags
from dualnet.data import BENCHMARKS
from dualnet.learners import LEARNERS
from dualnet.memory import MEMORIES, MemoryConfig
from dualnet.objectives import OBJECTIVES
from dualnet.reproduce import shipped_tables
from dualnet.stream.stream import Protocol

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")]


def words_of(page: str) -> set[str]:
    """What stands in code quotes, `learner.beta` as `beta` too."""
    quoted = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())
    return {word for text in quoted for word in (text, text.rpartition(".")[2])}


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
        ("docs/architecture.md", ["list", *(name for name in flags.SYNONYMS.values() if " " not in name)]),
    ],
)
def test_every_name_is_documented(page: str, names: object) -> None:
    assert set(names) - words_of(page) == set()  # pyright: ignore


def test_every_file_of_the_top_is_on_the_map() -> None:
    files = {path.name for path in (ROOT / "src/dualnet").glob("*.py")} - {"__init__.py"}
    assert files - words_of("docs/architecture.md") == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
