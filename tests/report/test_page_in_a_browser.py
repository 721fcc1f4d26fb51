"""The page in a real browser, where there is one: columns are sorted, and a phone shows what matters first."""

import html
import json
import re
import shutil
import subprocess

import pytest

from dualnet.report import report

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
# The page in a frame as wide as a phone; what the script finds there is the text of the paragraph.
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><p></p><iframe width="390" height="844" srcdoc="{page}"></iframe>
<script>
function look(page) {{
  const table = page.querySelector("table");
  const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const orders = [names()];
  for (const column of [1, 1, 0, 6, 6]) {{
    table.tHead.rows[0].cells[column].querySelector("button").click();
    orders.push(names());
  }}
  const texts = [...page.querySelectorAll("main *")].filter((e) => e.getClientRects().length && e.textContent.trim());
  const sizes = texts.map((element) => {{
    const drawing = element.closest("svg");
    return parseFloat(getComputedStyle(element).fontSize) * (drawing ? drawing.getScreenCTM().a : 1);
  }});
  const accuracy = table.tHead.rows[0].cells[1].getBoundingClientRect().right;
  return {{ orders, smallest: Math.min(...sizes), accuracy, width: page.documentElement.scrollWidth }};
}}
addEventListener("load", () => {{
  document.querySelector("p").textContent = JSON.stringify(look(document.querySelector("iframe").contentDocument));
}});
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_columns_are_sorted_and_a_phone_shows_accuracy_first(tmp_path, make_run):
    classes = {"counts": [10] * 10, "confusions": [[0, 1, 3]], "mistakes": []}
    for name, accuracy, forward in (("a", 60.0, 2_000), ("b", 9.0, 1_500_000), ("c", 70.0, 30_000)):
        cost = {"forward_samples": forward, "backward_samples": 1}
        make_run(tmp_path / name, [[90.0, None], [accuracy, accuracy]], name=name, classes=classes, cost=cost)
    report([tmp_path])
    harness = HARNESS.format(page=html.escape((tmp_path / "report.html").read_text()))
    (tmp_path / "harness.html").write_text(harness)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", tmp_path / "harness.html"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    (text,) = re.findall(r"<p>(.*?)</p>", shown)[:1]
    measured = json.loads(html.unescape(text))
    as_written, highest, lowest, by_name, most_costly, least = map("".join, measured["orders"])
    assert as_written == "abcchance"
    assert highest == "cachanceb" and lowest == "bchanceac", "chance is 20 %"
    assert by_name == "abcchance"
    assert most_costly == "bcachance" and least == "acbchance", "a dash is last"
    assert measured["accuracy"] <= 390 and measured["width"] <= 390
    assert measured["smallest"] >= 11
