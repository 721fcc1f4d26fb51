"""Hooks of MkDocs. The site also has pages generated from the code, and the files outside docs/ that its pages link.

A page links files by their places in the repository, as GitHub shows them; here `docs/` is left out of all places.
"""

import posixpath
import re
from pathlib import Path

from commands import commands
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")  # a relative link without its anchor
WHOLE_LINK = re.compile(r"\[([^]]+)\]\((?!\w+:|#)([^)#\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> None:
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    for name, source in {"reference/python.md": "website/python.md", "style.css": "website/style.css"}.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for place in linked_outside({f"docs/{page.src_uri}" for page in files.documentation_pages()}):
        files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))


def linked_outside(pages: set[str]) -> set[str]:
    """What the pages, and the pages that they link, link outside docs/."""
    known, unread = set(pages), {"CHANGELOG.md", *(page for page in pages if (ROOT / page).exists())}
    while unread:
        linked = {place for page in unread for place in links_of(page) if (ROOT / place).is_file()}
        unread = {place for place in linked - known if place.endswith(".md")}
        known |= linked
    return {place for place in {*known, "CHANGELOG.md"} if not place.startswith("docs/") and place != "README.md"}


def links_of(page: str) -> set[str]:
    return {target(page, link) for link in LINK.findall((ROOT / page).read_text(encoding="utf-8"))}


def target(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    place = here if (ROOT / here).exists() else f"docs/{here}"
    folder = posixpath.dirname(here) or "."
    markdown = WHOLE_LINK.sub(lambda link: link[1] if (ROOT / target(place, link[2])).is_dir() else link[0], markdown)
    return LINK.sub(lambda link: posixpath.relpath(in_site(target(place, link[1])), folder), markdown)


def in_site(place: str) -> str:
    return "index.md" if place == "README.md" else place.removeprefix("docs/")
