"""Reports on run folders: tables for the terminal, report.md, report.html, and a picture."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group

from dualnet import atomic

from .rows import Comparison, compare
from .views import markdown_page, terminal_view


def report(
    folders: Sequence[Path],
    out: Path | None = None,
    spread: str = "std",
    fm: str = "paper",
    against: str | None = None,
) -> Group:
    """Write report.md and report.html into `out` (default: the first folder). Returns the tables to print with rich."""
    return write_pages(compare(folders, spread, fm, against), Path(folders[0] if out is None else out))


def write_pages(comparison: Comparison, out: Path) -> Group:
    from .page import html_page  # matplotlib is slow to import

    pages = {"report.md": markdown_page(comparison), "report.html": html_page(comparison)}
    atomic.make_folder(out, "give --out another one")
    for name, page in pages.items():
        atomic.write(out / name, page)
    return terminal_view(comparison, out / "report.html")


def write_picture(comparison: Comparison, path: Path) -> None:
    """Draw accuracy and forgetting of all finished runs, or accuracy against an option, as an SVG or PNG file."""
    from .plots import picture_bytes

    kind = picture_kind(path)
    if not comparison.rows:
        raise ValueError(f"nothing to draw: none of the {len(comparison.unfinished)} runs is finished")
    drawn = picture_bytes(comparison, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, drawn)


def picture_kind(path: Path) -> str:
    """The file format, svg or png. Raises ValueError for any other suffix."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise ValueError(f"cannot draw {path.name!r}; the file name must end in .svg or .png")
    return kind
