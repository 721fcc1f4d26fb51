"""The documentation site: it is built without a warning, and loads nothing from another host."""

import os
import pkgutil
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dualnet
from dualnet.cli.flags import make_parser

pytest.importorskip("mkdocs", reason="needs MkDocs: pip install 'dualnet[docs]'")
ROOT = Path(__file__).parent.parent
COMMANDS = make_parser()[1].choices
ELSEWHERE = re.compile(r"(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strict: also a link that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Loaded(HTMLParser):
    """The addresses from which a browser loads parts of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("rel") != "canonical":
            names = ("src", "srcset", "data", "href" if tag == "link" else "poster")
            self.addresses += [value for name in names if (value := given.get(name))]


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    addresses = {address for page in pages for address in Loaded(page).addresses}
    styles = "".join(path.read_text() for path in site.rglob("*.css")) + "".join(page.read_text() for page in pages)
    addresses |= {address.strip("\"' ") for address in re.findall(r"url\(([^)]+)\)|@import", styles)}
    assert len(pages) > 30 and len(addresses) > 30
    assert not [address for address in addresses if ELSEWHERE.match(address)]


def test_the_reference_has_every_command_and_every_public_name(site: Path) -> None:
    python = (site / "reference/python/index.html").read_text()
    names = {*dualnet.__all__, "DualNetClassifier"}
    assert not [name for name in names if not re.search(rf'(id="dualnet[.\w]*\.|<code>){name}["<]', python)]
    commands = (site / "reference/commands/index.html").read_text()
    assert not [name for name in COMMANDS if f'id="dualnet-{name}"' not in commands]


def test_the_functions_of_the_paper_exist() -> None:
    """All ten equations, the 14 lines of Algorithm 1, and the 8 of its procedure."""
    page = (ROOT / "docs/paper.md").read_text()
    names = re.findall(r"`(dualnet\.[\w.]+)`", page)
    assert [name for name in names if not callable(pkgutil.resolve_name(name))] == []
    numbers = [int(number) for row in re.findall(r"^\| (\d[\d, ]*) \|", page, re.M) for number in row.split(",")]
    assert numbers == [*range(1, 11), *range(1, 15), *range(1, 9)]
