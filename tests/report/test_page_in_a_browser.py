"""The page in a real browser: sorting, legends, values under the pointer, many experiments, a phone, contrast."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from accessibility import serious_findings

from dualnet.report import report

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'dualnet[dev]'")

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium: apt-get install chromium", allow_module_level=True)

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
TEXT_SIZES = """() => [...document.querySelectorAll("main *")]
    .filter((element) => element.getClientRects().length && element.textContent.trim())
    .map((element) => {
        const drawing = element.closest("svg");
        return parseFloat(getComputedStyle(element).fontSize) * (drawing ? drawing.getScreenCTM().a : 1);
    })"""
# The contrast (WCAG 2) of each element that shows letters or digits with the nearest background behind it.
CONTRASTS = """() => {
    const parts = (colour) => colour.match(/[0-9.]+/g).map(Number);
    const light = (colour) => parts(colour).slice(0, 3).map((part) => part / 255)
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (element) => {
        if (element.matches(".heat .number")) return getComputedStyle(element.previousElementSibling).fill;
        const colour = getComputedStyle(element).backgroundColor;
        return element.parentElement && parts(colour)[3] === 0 ? behind(element.parentElement) : colour;
    };
    const isText = (node) => node.nodeType === Node.TEXT_NODE;
    const own = (element) => [...element.childNodes].filter(isText).map((node) => node.data).join("");
    const shown = [...document.querySelectorAll("main *")].filter((element) => /[a-z0-9]/i.test(own(element)));
    return shown.filter((element) => element.getClientRects().length).map((element) => {
        const colour = getComputedStyle(element)[element.closest("svg text") ? "fill" : "color"];
        const [low, high] = [light(colour), light(behind(element))].sort((a, b) => a - b);
        return [(high + 0.05) / (low + 0.05), own(element).trim()];
    });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """opened(size): the page of the report on the runs in `tmp_path`. An error on the page fails the test."""
    errors, pages = [], []

    def make(size=DESKTOP, **options) -> playwright.Page:
        report([tmp_path])
        page = browser.new_page(viewport=size, **options)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        page.goto((tmp_path / "report.html").as_uri())
        pages.append(page)
        return page

    yield make
    for page in pages:
        page.close()
    assert errors == []


def make_three(make_run, folder: Path) -> None:
    """Experiments with an ACC of 60, 9 and 70; the second costs most."""
    classes = {"counts": [10] * 10, "confusions": [[0, 1, 3]], "mistakes": []}
    for name, accuracy, forward in (("a", 60.0, 2_000), ("b", 9.0, 1_500_000), ("c", 70.0, 30_000)):
        cost = {"forward_samples": forward, "backward_samples": 1}
        make_run(folder / name, [[90.0, None], [accuracy, accuracy]], name=name, classes=classes, cost=cost)


def test_columns_are_sorted_and_the_best_is_first(opened, make_run, tmp_path):
    make_three(make_run, tmp_path)
    page = opened()
    first_column = page.locator("table").first.locator("tbody th")

    def names() -> str:
        return "".join(text.split()[0] for text in first_column.all_inner_texts())

    heads = page.locator("table").first.locator("thead th")
    assert "c 70.00 %" in " ".join(page.locator(".verdict").inner_text().split())
    assert page.locator("tbody th", has_text="highest ACC").inner_text().split()[0] == "c"
    assert names() == "cabchance" and heads.nth(1).get_attribute("aria-sort") == "descending"
    for column, order in ((1, "bchanceac"), (1, "cachanceb"), (0, "abcchance"), (6, "bcachance"), (6, "acbchance")):
        heads.nth(column).get_by_role("button").click()
        assert names() == order, "chance is 20 %, and a dash is last"


def test_a_legend_hides_lines_and_the_pointer_names_values(opened, make_run, tmp_path):
    make_three(make_run, tmp_path)
    page = opened()
    section = page.locator("details", has=page.locator("summary", has_text="Accuracy and forgetting"))
    entry, line = (
        section.locator(".legend [role=button]", has_text="a"),
        section.locator("svg").first.locator("[data-line='1']"),
    )
    point = line.locator("use").nth(1)
    point.hover(force=True)
    assert page.locator(".tip").inner_text() == "■ a: 60.00"
    entry.focus()
    page.keyboard.press("Enter")
    assert entry.get_attribute("aria-pressed") == "false" and not line.is_visible()
    entry.click()
    assert line.is_visible()


def test_a_phone_shows_accuracy_first_and_readable_text(opened, make_run, tmp_path):
    make_three(make_run, tmp_path)
    page = opened(PHONE)
    head = page.locator("thead th").nth(1).bounding_box()
    assert head["x"] + head["width"] <= 390 and page.evaluate("document.documentElement.scrollWidth") <= 390
    assert min(page.evaluate(TEXT_SIZES)) >= 11


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(opened, make_run, tmp_path, scheme):
    make_three(make_run, tmp_path)
    contrasts = opened(color_scheme=scheme).evaluate(CONTRASTS)
    assert len(contrasts) > 100 and min(contrasts)[0] >= 4.5, min(contrasts)


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_axe_finds_nothing_serious(opened, make_run, tmp_path, size, scheme):
    """Of the page as it opens, and with all sections open."""
    for number in range(9):  # more than eight: with contents and filter
        make_run(tmp_path / str(number), [[90.0, None], [50.0 + number, 60.0]], name=f"grid/{number}")
    make_three(make_run, tmp_path)
    page = opened(size, color_scheme=scheme)
    assert serious_findings(page) == []
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert serious_findings(page) == []


def test_many_experiments_are_collapsed_listed_and_filtered(opened, make_run, tmp_path):
    for number in range(36):
        share, rounds = (0.1, 1.0)[number % 2], number // 2
        name, learner = f"grid/share-{share}/rounds-{rounds}", {"name": "dualnet", "slow": {"rounds": rounds}}
        make_run(
            tmp_path / str(number),
            [[90.0, None], [50.0 + rounds, 60.0]],
            name=name,
            learner=learner,
            labels={"share": share},
        )
    page = opened()
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    contents = page.locator("nav a")
    assert contents.all_inner_texts()[:2] == ["labels for 1 image in 10", "all labels"]
    contents.first.click()
    first = page.locator("main > details").first.locator("table").first.locator("tbody th").first
    playwright.expect(first).to_have_text(re.compile("^17"), use_inner_text=True)
    cut = "() => [...document.querySelectorAll('.scroll')].filter((part) => part.scrollWidth > part.clientWidth).length"
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.evaluate(cut) == 0
    page.mouse.wheel(0, 3000)
    page.wait_for_function("scrollY > 0")
    assert page.locator("nav").bounding_box()["y"] <= 1, "the contents stay in sight"
    page.get_by_label("Filter").fill("rounds=12")
    names = {row.split()[0] for row in page.locator("tbody tr:visible").all_inner_texts()}
    assert names == {"grid/share-0.1/rounds-12", "grid/share-1.0/rounds-12"}
