"""Reports on run folders: tables for the terminal, report.md, report.html, and a picture."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group

from dualnet import atomic
from dualnet.report.markdown import markdown_page
from dualnet.report.rows import compare
from dualnet.report.terminal import terminal_view


def report(
    folders: Sequence[Path],
    out: Path | None = None,
    spread: str = "std",
    fm: str = "paper",
    against: str | None = None,
    picture: Path | None = None,
) -> Group:
    """Write report.md and report.html into `out` (default: the first folder). Returns the tables to print with rich.

    A picture is an SVG or PNG file of accuracy and forgetting of all finished runs, or of accuracy against an option.
    Nothing is written if anything cannot be drawn.
    """
    from dualnet.report.page import html_page  # matplotlib is slow to import
    from dualnet.report.plots import picture_bytes

    comparison, out = compare(folders, spread, fm, against), Path(folders[0] if out is None else out)
    files: dict[Path, bytes | str] = {} if picture is None else {picture: picture_bytes(comparison, picture)}
    files |= {out / "report.md": markdown_page(comparison), out / "report.html": html_page(comparison)}
    atomic.make_folder(out, "give --out another one")
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content)
    return terminal_view(comparison, out / "report.html")
