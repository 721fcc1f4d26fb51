"""docs/tutorials/browser.md is true: a browser does what it says, and sees what it shows.

`PICTURES=$PWD/docs/tutorials` takes its pictures again.
"""

import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from serving import START_SECONDS, Server

from dualnet import cli

pytest.importorskip("fastapi")
pytest.importorskip("sklearn")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'dualnet[dev]'")
expect = playwright.expect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium: apt-get install chromium", allow_module_level=True)

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"
PAGE = (TUTORIALS / "browser.md").read_text()


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", text, re.M | re.S)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[playwright.Page]:
    """Of a service without classes, beside the images."""
    monkeypatch.chdir(tmp_path)
    exec(blocks("python", (TUTORIALS / "photos.md").read_text())[0], {})
    with Server(tmp_path / "live") as server, playwright.sync_playwright() as driver:
        assert blocks("text", PAGE)[0].replace("8000", str(server.port)) in server.log
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport={"width": 1100, "height": 440})
        page.set_default_timeout(1000 * START_SECONDS)
        expect.set_options(timeout=1000 * START_SECONDS)
        page.goto(f"http://127.0.0.1:{server.port}/")
        yield page
        browser.close()


def test_the_tutorial(page: playwright.Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def take_picture(part: playwright.Page | playwright.Locator, name: str) -> None:
        page.mouse.move(0, 0)
        page.locator("#message").evaluate("(message) => { message.textContent = '' }")
        path = Path(os.environ.get("PICTURES", tmp_path), name)
        part.screenshot(path=path, animations="disabled")
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)

    shown = iter(blocks("text", PAGE)[1:])
    for name in ("sky", "building"):
        page.get_by_label("Name of the new class").fill(name)
        page.get_by_role("button", name="Add class").click()
        page.get_by_label(f"Add images to {name}").set_input_files(sorted(Path("photos", name).iterdir()))
    expect(page.locator("#progress")).to_have_text(next(shown))
    expect(page.locator(".waiting")).to_have_count(0)
    take_picture(page, "browser-teach.png")

    def expect_answer(image: str) -> playwright.Locator:
        page.locator("#try input[type=file]").set_input_files(image)
        expect(page.locator("#images .summary").first).to_have_text(next(shown))
        return page.locator("#images .image").first

    expect_answer("test/sky/480-0.jpg")
    petals = expect_answer("test/petals/340-216.jpg")
    petals.get_by_label("Another class").fill("petals")
    petals.get_by_role("button", name="Teach").click()
    expect(petals.locator(".summary")).to_have_text(next(shown))
    more = re.findall(r"unsorted/[\d-]+\.jpg", PAGE)
    page.get_by_label("Add images to petals").set_input_files(more)
    expect(page.locator("[data-name=petals] .facts")).to_contain_text(f"{len(more)} images learned")
    expect_answer("test/petals/340-184.jpg")
    expect(petals.get_by_role("button", name="petals")).to_contain_text("99 %")
    take_picture(page.locator("#try"), "browser-try.png")

    page.get_by_label("Add images to sky").set_input_files("test/building/220-100.jpg")
    page.locator("[data-name=sky] .strip button").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="building").click()
    expect(dialog.locator(".summary")).to_have_text(next(shown))
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Edit building").click()
    page.get_by_role("dialog").get_by_label("Name of the class").fill("pagoda")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Edit petals").click()
    page.get_by_role("button", name="Remove class").click()
    expect(page.locator(".undo:visible")).to_contain_text(next(shown))
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#use-hint")).to_contain_text("sky, pagoda and petals")

    with page.expect_download() as download:
        page.get_by_role("button", name="Download model.zip").click()
    zipfile.ZipFile(download.value.path()).extractall()
    capsys.readouterr()
    assert cli.main(blocks("sh", PAGE)[-1].splitlines()[-1].split()[1:]) == 0
    best = re.compile(r"\S+: \w+")
    assert best.findall(capsys.readouterr().out) == best.findall(next(shown))
    assert next(shown, None) is None


def test_every_button_of_the_tutorial_exists() -> None:
    """Its words, in bold, are those of the page."""
    words = {" ".join(word.split()) for word in re.findall(r"\*\*(.+?)\*\*", PAGE, re.S)}
    html = (Path(cli.__file__).parents[1] / "serve/static/index.html").read_text()
    assert not [word for word in words - {"Download model.zip"} if f">{word}<" not in html]
