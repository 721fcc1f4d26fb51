"""HTML elements of the report page: tables, legends, cards, sections. All text is escaped here."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from dualnet import text
from dualnet.experiments.class_results import Mistake
from dualnet.report.rows import Series
from dualnet.report.style import FEW_TASKS, GLYPHS, PALETTE, Limits, accuracy_colour, marker_index, task_colour
from dualnet.report.tables import Best, TextTable


def html_table(table: TextTable) -> str:
    """A table that scrolls horizontally with a fixed first column."""
    head = _line(table.header, table, "th scope='col'")
    body = "".join(_line(line, table, "td") for line in table.rows)
    kind = " class='sortable'" if len(table.rows) > 1 and all(line[0] for line in table.rows) else ""
    return f"<div class='scroll' tabindex='0'><table{kind}><thead>{head}</thead><tbody>{body}</tbody></table></div>\n"


def _line(cells: Sequence[str], table: TextTable, tag: str) -> str:
    parts = []
    for column, cell in enumerate(cells):
        kind = "th scope='row'" if column == 0 and tag == "td" else tag
        # Long paths and options may wrap after a slash, a dot between letters, or an equals sign.
        breakable = re.sub(r"(?<=\w)(=|[/.](?=[a-zA-Z_]))", r"\1<wbr>", escape(cell))
        text = f"<strong>{escape(cell)}</strong>" if isinstance(cell, Best) else breakable
        content = f" class='number'>{text}" if column in table.numeric else f"><div>{text}</div>"
        parts.append(f"<{kind}{content}</{kind[:2]}>")
    return f"<tr>{''.join(parts)}</tr>"


def bullets(sentences: Iterable[str], kind: str = "notes") -> str:
    return f"<ul class='{kind}'>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>\n"


def remark(sentence: str) -> str:
    return f"<p class='hint'>{escape(sentence)}</p>\n"


def legend(series: Sequence[Series]) -> str:
    return f"<p class='legend'>{''.join(f'<span>{symbol(one)} {escape(one.label)}</span>' for one in series)}</p>\n"


def symbol(series: Series) -> str:
    return f"<i style='color: var(--row-{series.index % len(PALETTE)})'>{GLYPHS[marker_index(series)]}</i>"


def task_legend(num_tasks: int, num_shown: int | None = None, word: str = "task") -> str:
    """The colours of tasks (or classes): a named entry for each of a few, else a colour scale."""
    count = num_tasks if num_shown is None else num_shown
    if count > FEW_TASKS:
        return _scale(f"{word} 1", [task_colour((count - 1) * i / 8, num_tasks) for i in range(9)], f"{word} {count}")
    colours = (task_colour(task, num_tasks) for task in range(count))
    names = (f"<span><i style='color: {c}'>●</i> {word} {i}</span>" for i, c in enumerate(colours, start=1))
    return f"<p class='legend'>{''.join(names)}</p>\n"


def accuracy_legend(limits: Limits) -> str:
    """The colour scale of accuracies in a heat map."""
    colours = [accuracy_colour(share, (0, 8)) for share in range(9)]
    return _scale(f"{limits[0]:.0f} %", colours, f"{limits[1]:.0f} %")


def _scale(low: str, colours: Sequence[str], high: str) -> str:
    bar = f"<span class='bar' style='background: linear-gradient(to right, {', '.join(colours)})'></span>"
    return f"<p class='scale'>{low} {bar} {high}</p>\n"


def grid(cards: Iterable[str], kind: str = "pair") -> str:
    return f"<div class='cards {kind}'>{''.join(cards)}</div>\n"


def card(title: str, hint: str, body: str, icon: str) -> str:
    below = f" <small>{escape(hint)}</small>" if hint else ""
    return f"<figure><figcaption><b>{icon} {escape(title)}</b>{below}</figcaption>{body}</figure>"


def fold(summary: str, body: str) -> str:
    """A collapsed section."""
    return f"<details><summary>{escape(summary)}</summary>\n{body}</details>\n"


def thumbnails(mistakes: Iterable[Mistake], class_names: Sequence[str]) -> str:
    """Misclassified images with their class and the prediction."""
    parts = []
    for mistake in mistakes:
        name = escape(text.escape(mistake.image))
        image = f"<img src='data:image/jpeg;base64,{mistake.thumbnail}' alt='{name}' title='{name}'>"
        confidence = f"<small>confidence {100 * mistake.probability:.1f} %</small>"
        truth, answer = escape(class_names[mistake.truth]), escape(class_names[mistake.answer])
        caption = f"<b>{truth}</b>predicted as {answer}{confidence}"
        parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    return f"<div class='thumbnails'>{''.join(parts)}</div>\n"


def section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}</section>\n"
