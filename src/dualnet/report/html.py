"""The Jinja templates of the report page. They escape all text; what their macros return is HTML."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dualnet.text import escape

# Long paths and options may wrap after a slash, a dot between letters, or an equals sign.
BREAKS = re.compile(r"(?<=\w=)|(?<=\w[/.])(?=[a-zA-Z_])")


@cache
def templates() -> Environment:
    folder = FileSystemLoader(Path(__file__).parent)
    made = Environment(
        loader=folder,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_keep_percent,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"breakable_parts": BREAKS.split, "visible": escape}
    return made


def _keep_percent(value: object) -> object:
    """Text in which a percent sign stays on the line of its number; HTML as it is."""
    return value if isinstance(value, Markup) else str(value).replace(" %", "\N{NO-BREAK SPACE}%")


@cache
def elements() -> Any:
    """The macros of elements.html, such as `elements().card(title, hint, body)`."""
    return templates().get_template("elements.html").module
