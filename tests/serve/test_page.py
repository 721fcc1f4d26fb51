"""The page in a real browser, against a real server. A test may use the classes red, green and blue, or add its own."""

import base64
import contextlib
import http.client
import http.server
import io
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accessibility import serious_findings
from commands import environment
from PIL import Image
from serving import START_SECONDS, Server, picture, pictures, png, small_model

pytest.importorskip("fastapi")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'dualnet[dev]'")
expect = playwright.expect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium: apt-get install chromium", allow_module_level=True)

EVERY = 3  # one image in so many is held out
HTML = "<img src=x onerror=\"document.title='broken into'\">"
DROPPED = """([element, images]) => {
    const data = new DataTransfer();
    const file = (image) => new File([Uint8Array.fromBase64(image)], "a.png", { type: "image/png" });
    for (const image of images) data.items.add(file(image));
    for (const kind of ["dragover", "drop"])
        element.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""
PASTED = (
    DROPPED.replace("DragEvent", "ClipboardEvent")
    .replace("dataTransfer", "clipboardData")
    .replace('"dragover", "drop"', '"paste"')
)


def files(colour: str, first: int, count: int, held_out: bool = False) -> list[dict[str, object]]:
    """Images that are learned, or held out."""
    images = [png(picture(colour, n)) for n in islice(pictures(colour, EVERY, first, held_out), count)]
    return [{"name": "a.png", "mimeType": "image/png", "buffer": image} for image in images]


def six(colour: str) -> list[dict[str, object]]:
    return files(colour, 0, 4) + files(colour, 0, 2, held_out=True)


def as_text(images: list[dict[str, Any]]) -> list[str]:
    return [base64.b64encode(image["buffer"]).decode() for image in images]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("page")
    model = small_model(folder / "model")
    state = folder / ("state" * 12)  # a notice of the page shows it: longer than a line on a phone
    server = Server(state, "--model", model, "--held-out-every", EVERY, "--share", 0.3)
    assert server.port, server.log
    yield server
    server.end()


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator[playwright.Page]:
    """Fails for an error on the page, such as a breach of its security policy."""
    errors: list[str] = []
    camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=camera)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(1000 * START_SECONDS)
        expect.set_options(timeout=1000 * START_SECONDS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"http://127.0.0.1:{server.port}/")
        teach_colours(page)
        yield page
        browser.close()
    expected = (
        "ERR_CONNECTION_REFUSED",
        "status of 401",
        "status of 404",
        "status of 409",
        "ERR_INTERNET_DISCONNECTED",
    )
    assert [error for error in errors if not any(part in error for part in expected)] == []


def class_card(page: playwright.Page, name: str) -> playwright.Locator:
    return page.locator(".class").filter(has=page.get_by_role("heading", name=name, exact=True))


def add_class(page: playwright.Page, name: str) -> playwright.Locator:
    page.get_by_label("Name of the new class").fill(name)
    page.keyboard.press("Enter")
    expect(class_card(page, name)).to_be_visible()
    return class_card(page, name)


def classify(page: playwright.Page, colour: str) -> playwright.Locator:
    """The card of an image that the model has not seen."""
    page.locator("#try input[type=file]").set_input_files(files(colour, 1000, 1))
    return page.locator("#images .image").first


def expect_prediction(page: playwright.Page, colour: str) -> None:
    """In the end: the predictions on the page follow the model."""
    card = classify(page, colour)
    expect(card).to_have_attribute("data-prediction", colour)
    expect(card.get_by_role("button", name=colour)).to_have_text(re.compile(r"\d+ %$"))


def teach_colours(page: playwright.Page) -> None:
    """One after another: chosen, dropped and pasted."""
    add_class(page, "red")
    page.get_by_label("Add images to red").set_input_files(six("red"))
    page.evaluate(DROPPED, [add_class(page, "green").element_handle(), as_text(six("green"))])
    expect(class_card(page, "green").locator(".strip img")).to_have_count(6)
    expect_prediction(page, "red")
    expect_prediction(page, "green")
    button = add_class(page, "blue").get_by_role("button", name="Camera for blue")
    page.evaluate(PASTED, [button.element_handle(), as_text(six("blue"))])
    expect(class_card(page, "blue").locator(".strip img")).to_have_count(6)


def facts(page: playwright.Page, name: str) -> playwright.Locator:
    return class_card(page, name).locator(".facts")


def test_classes_taught_in_sequence_are_all_predicted_correctly(page: playwright.Page) -> None:
    for colour in ("blue", "red", "green"):
        expect_prediction(page, colour)
        expect(facts(page, colour)).to_have_text("4 images learned\n2 of 2 test images right")
    told = "All 12 images learned. 6 more (dashed) test the model: 6 of 6 right."
    expect(page.locator("#progress")).to_have_text(told)
    page.get_by_text("Curves over time").click()
    expect(page.locator("#accuracy .legend li")).to_have_text(
        [re.compile(rf"^{colour} \(2 images\) \d") for colour in ("red", "green", "blue")]
    )
    for chart in ("accuracy", "losses", "slow", "steps"):
        assert page.locator(f"#{chart} path.line").count() >= 1
    clipped = "(svg) => [...svg.querySelectorAll('text')].filter((one) => one.getBBox().x < 0).length"
    assert page.locator("#slow svg").evaluate(clipped) == 0


def test_nothing_is_predicted_before_two_classes_have_learned_images(page: playwright.Page, server: Server) -> None:
    """Also if the classes exist, and if the model would name one."""
    browser = page.context.browser
    assert browser is not None
    status = server.get("/v1/status")
    for row in status["classes"][1:]:
        row["waiting"] = row["examples"] - row["held_out"]
    with browser.new_page() as other:
        other.route("**/v1/status", lambda route: route.fulfill(json=status))
        other.route("**/v1/events?*", lambda route: route.abort())  # nothing newer
        other.goto(f"http://127.0.0.1:{server.port}/")
        expect(facts(other, "green")).to_have_text("Not learned yet\n2 of 2 test images right")
        expect(other.locator("#progress")).to_have_text(re.compile(r"^4 of 18 images learned"))
        expect(other.locator("#try-hint")).to_contain_text("Once two classes have learned images")
        other.locator("#keep").uncheck()
        card = classify(other, "green")
        expect(card.locator(".summary")).to_have_text("No prediction before two classes have learned images.")
        expect(card.get_by_role("button", name="green")).to_contain_text("not learned yet")
        expect(other.locator("#snippets")).to_be_hidden()


def test_a_prediction_is_corrected_with_one_click_and_the_image_deleted(page: playwright.Page, server: Server) -> None:
    before = {row["name"]: row["examples"] for row in server.get("/v1/classes")}
    card = classify(page, "blue")
    card.get_by_role("button", name="green").click()
    expect(card.get_by_role("button", name="green")).to_have_attribute("aria-pressed", "true")
    expect(card.locator(".summary")).to_have_text(re.compile("^Taught as green"))
    assert {row["name"]: row["examples"] for row in server.get("/v1/classes")} == before | {
        "green": before["green"] + 1
    }
    card.get_by_label("Another class").fill("sky")
    card.get_by_role("button", name="Teach").click()
    expect(facts(page, "sky")).to_contain_text("1 image learned")
    class_card(page, "sky").locator(".strip button").press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".summary")).to_contain_text("Taught as sky")
    dialog.get_by_role("button", name="Delete").click()
    expect(facts(page, "sky")).to_contain_text("No images yet")
    assert {row["name"]: row["examples"] for row in server.get("/v1/classes")} == before | {"sky": 0}


def test_an_image_unlike_all_classes_offers_a_new_class(page: playwright.Page) -> None:
    answer = {"classes": [{"name": "red", "probability": 0.6}, {"name": "blue", "probability": 0.4}], "unknown": True}
    page.locator("#keep").uncheck()
    page.route("**/v1/predict?*", lambda route: route.fulfill(json={"version": "1", "predictions": [answer]}))
    card = classify(page, "red")
    expect(card.locator(".summary")).to_have_text("Unlike all classes: a new one? If it is one of these:")
    expect(card.get_by_placeholder("new class")).to_be_visible()
    page.unroute_all()
    page.locator("#keep").check()
    card.get_by_role("button", name="Delete").click()


def test_the_images_to_label_next_take_one_click(page: playwright.Page, tmp_path: Path) -> None:
    """Of a model with a closed-form head, which tells what would teach it most."""
    browser = page.context.browser
    assert browser is not None
    with Server(tmp_path / "state", "--held-out-every", 0) as server, browser.new_page() as other:
        for number in range(3):
            for colour in ("red", "green"):
                server.teach(png(picture(colour, number)), colour)
        for number in range(6):
            server.upload("/v1/examples", png(picture("blue", number)), id=f"next-{number}")
        server.learned()
        other.goto(f"http://127.0.0.1:{server.port}/")
        expect(other.locator("#next > p span")).to_contain_text("would teach the model most")
        images = other.locator("#next .image")
        expect(images).to_have_count(4)
        images.first.get_by_role("button", name="red").click()
        expect(images.first.locator(".summary")).to_contain_text("Taught as red")
        assert [row["examples"] for row in server.get("/v1/classes")] == [4, 3]
        for image in images.all()[1:]:
            image.get_by_role("button", name="green").click()
        expect(images).to_have_count(2)
        expect(images.first.locator(".summary")).to_contain_text(re.compile("Looks like|Unlike"))


def test_an_image_that_is_taught_is_sent_once(page: playwright.Page, server: Server) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    card = add_class(page, "once")
    with page.expect_response("**/v1/predictions?**"):  # of all images, after the model has changed
        card.get_by_label("Add images").set_input_files(files("blue", 95, 1))
    expect(card.locator(".strip img")).to_have_count(1)
    assert len([url for url in sent if url.endswith("/v1/examples")]) == 1
    server.send("DELETE", f"/v1/classes/{class_numbers(server)['once']}")  # its image looks like another class


def test_images_wait_in_their_card_and_the_progress_counts_them(page: playwright.Page, server: Server) -> None:
    """While the service has not answered."""
    card, held, first = add_class(page, "slow"), [], threading.Event()
    page.route("**/v1/examples", lambda route: route.continue_() if first.is_set() else held.append(route))
    card.get_by_label("Add images").set_input_files(files("blue", 100, 3))
    expect(card.locator(".strip .waiting img")).to_have_count(1)
    expect(card.locator(".strip .waiting")).to_have_count(3)
    expect(card.locator(".facts")).to_contain_text("Not learned yet")
    expect(page.locator("#progress")).to_have_text(re.compile(r"^\d+ of \d+ images learned"))
    top = card.bounding_box()
    first.set()
    held[0].continue_()
    expect(card.locator(".facts")).to_contain_text("3 images learned")
    expect(card.locator(".strip .waiting")).to_have_count(0)
    expect(page.locator("#progress")).to_have_text(re.compile(r"^All \d+ images learned"))
    assert card.bounding_box() == top  # nothing has moved
    page.unroute_all()
    server.send("DELETE", f"/v1/classes/{class_numbers(server)['slow']}")


def test_a_recording_and_the_live_camera(page: playwright.Page, server: Server) -> None:
    card = add_class(page, "photo")
    card.get_by_role("button", name="Camera").click()
    expect(card.locator("video")).to_have_js_property("readyState", 4)
    record = card.get_by_role("button", name="Hold to record")
    record.hover()
    page.mouse.down()
    expect(card.locator(".strip img").nth(2)).to_be_visible()
    page.mouse.up()
    card.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Live camera").click()
    live = page.locator("#live")
    expect(live.locator(".predictions button")).not_to_have_count(0)
    expect(live.locator(".image")).to_have_attribute("data-prediction", re.compile("."))
    taught = card.locator(".strip img").count()
    live.get_by_role("button", name="photo").click()
    expect(page.locator("#message")).to_have_text("This picture is taught as photo.")
    expect(card.locator(".strip img")).to_have_count(taught + 1)
    stream = page.evaluate_handle("document.querySelector('#live video').srcObject")
    page.get_by_role("button", name="Stop the camera").first.click()
    expect(live).to_be_hidden()
    assert stream.evaluate("(stream) => stream.active") is False
    server.send("DELETE", f"/v1/classes/{class_numbers(server)['photo']}")


def test_pause_and_snapshots(page: playwright.Page, server: Server) -> None:
    page.locator("#snapshots").evaluate("(details) => (details.open = true)")
    memory = add_class(page, "kept").locator(".strip img")
    page.get_by_label("Add images to kept").set_input_files(files("blue", 49, 1))
    expect(memory).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert server.get("/v1/status")["background"]["activity"] == "paused"
    page.get_by_label("Title of the snapshot").fill("before")
    page.get_by_role("button", name="Take snapshot").click()
    expect(page.get_by_role("button", name="Restore before")).to_be_visible()
    page.get_by_label("Add images to kept").set_input_files(files("blue", 50, 1))
    expect(memory).to_have_count(2)
    page.get_by_role("button", name="Restore before").click()
    expect(page.locator("#message")).to_have_text("before restored.")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def restore_damaged_snapshot(page: playwright.Page, server: Server, title: str) -> int:
    page.locator("#snapshots").evaluate("(details) => (details.open = true)")
    page.get_by_label("Title of the snapshot").fill(title)
    page.get_by_role("button", name="Take snapshot").click()
    restore = page.get_by_role("button", name=f"Restore {title}")
    expect(restore).to_be_visible()
    number = server.get("/v1/snapshots")[-1]["number"]
    (server.state / "snapshots" / str(number) / "checkpoint/step-00000001.safetensors").write_text("{")
    restore.click()
    expect(page.locator("#error")).to_contain_text(f"snapshot {number} cannot be read")
    return number


def test_a_damaged_snapshot_is_reported_and_not_restored(page: playwright.Page, server: Server) -> None:
    number = restore_damaged_snapshot(page, server, "damaged")
    status, wrong = server.send("POST", f"/v1/snapshots/{number}/restore")
    assert (status, wrong["error"]["code"]) == (409, "conflict") and "holds no checkpoint" in wrong["error"]["message"]


def class_numbers(server: Server) -> dict[str, int]:
    return {row["name"]: row["number"] for row in server.get("/v1/classes")}


def test_a_class_is_renamed(page: playwright.Page, server: Server) -> None:
    old = class_numbers(server)
    add_class(page, "cloud")
    card = classify(page, "blue")
    card.locator("input").fill("cloud")  # the likeliest classes alone have buttons
    page.keyboard.press("Enter")
    expect(card.locator(".summary")).to_contain_text("Taught as cloud")
    page.get_by_role("button", name="Edit cloud").click()
    name = page.get_by_role("dialog").get_by_label("Name of the class")
    expect(name).to_be_focused()
    name.fill("red")
    page.keyboard.press("Enter")
    assert name.evaluate("(input) => input.validationMessage") == "There is a class red already."
    name.fill(" heaven ")
    page.keyboard.press("Enter")
    renamed = class_card(page, "heaven")
    expect(renamed.locator(".strip img").first).to_have_attribute("alt", "image of heaven")
    expect(card.locator(".summary")).to_contain_text("Taught as heaven")
    expect(card.get_by_role("button", name="heaven")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="cloud")).to_have_count(0)  # of this class, nor of a prediction
    now = class_numbers(server)
    assert [*now] == [*old, "heaven"]
    card.get_by_role("button", name="Delete").click()
    server.send("PUT", f"/v1/classes/{now['heaven']}/name", {"name": "cloud"})  # by another client
    expect(class_card(page, "cloud")).to_be_visible()
    expect(renamed).to_have_count(0)


def test_another_client_renames_a_class(page: playwright.Page, server: Server) -> None:
    card = add_class(page, "early")
    card.get_by_label("Add images").set_input_files(files("blue", 85, 1))
    expect(card.locator(".strip img")).to_have_attribute("alt", "image of early")
    server.send("PUT", f"/v1/classes/{class_numbers(server)['early']}/name", {"name": "late"})
    expect(class_card(page, "late").locator(".strip img")).to_have_attribute("alt", "image of late")
    server.send("DELETE", f"/v1/classes/{class_numbers(server)['late']}")
    expect(class_card(page, "late")).to_have_count(0)


def remove(page: playwright.Page, name: str) -> None:
    page.get_by_role("button", name=f"Edit {name}").click()
    page.get_by_role("button", name="Remove class").click()
    expect(page.get_by_text(f"{name} and its images are deleted in")).to_be_visible()


def test_the_removal_of_a_class_is_undone_or_final(page: playwright.Page, server: Server) -> None:
    old = class_numbers(server)
    card = add_class(page, "mistake")
    card.get_by_label("Add images").set_input_files(files("blue", 80, 1))
    expect(card.locator(".facts")).to_contain_text("1 image learned")
    tried = classify(page, "blue")
    tried.locator("input").fill("mistake")
    page.keyboard.press("Enter")
    expect(tried.locator(".summary")).to_contain_text("Taught as mistake")
    page.get_by_role("button", name="Edit mistake").click()
    page.get_by_role("button", name="Close").click()
    remove(page, "mistake")
    expect(tried.get_by_role("button", name="mistake")).to_have_count(0)
    assert class_numbers(server).keys() - old.keys() == {"mistake"}
    page.keyboard.press("Enter")  # the focus is on Undo
    expect(card.locator(".facts")).to_contain_text("2 images learned")
    expect(tried.get_by_role("button", name="mistake")).to_have_count(1)
    expect(tried.get_by_role("button", name="mistake").locator("b")).not_to_have_text("0 %")
    expect(page.get_by_role("button", name="Edit mistake")).to_be_focused()
    remove(page, "mistake")
    before = page.locator("#images .image").count()
    page.get_by_role("button", name="Delete now").click()
    expect(card).to_have_count(0)
    expect(page.locator("#message")).to_contain_text("mistake removed")
    expect(page.locator("#images .image")).to_have_count(before - 1)
    assert class_numbers(server) == old


def test_a_removal_is_final_once_the_page_is_left(page: playwright.Page, server: Server) -> None:
    old = class_numbers(server)
    add_class(page, "left")
    remove(page, "left")
    page.reload()
    server.status_when(lambda _: class_numbers(server) == old)
    expect(class_card(page, "red").locator(".strip img")).to_have_count(6)
    expect(class_card(page, "left")).to_have_count(0)


def focused(page: playwright.Page) -> str:
    return page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")


def test_everything_is_done_with_the_keyboard(page: playwright.Page, server: Server) -> None:
    names = ["four", "five"]
    for name in names:
        add_class(page, name)
    page.reload()
    expect(class_card(page, "red").locator(".strip img")).to_have_count(6)
    fifth, tabs = page.locator(".class").nth(4), 0
    while not fifth.evaluate("(card) => card.contains(document.activeElement)"):
        page.keyboard.press("Tab")
        tabs += 1
        assert tabs <= 10 and not focused(page).startswith("Images of")
    name = fifth.get_attribute("data-name")
    assert focused(page) == f"Add images to {name}"
    page.keyboard.press("ArrowRight")
    assert focused(page) == f"Camera for {name}"
    page.keyboard.press("Enter")
    expect(fifth.locator("video")).to_have_js_property("readyState", 4)
    assert focused(page) == f"Hold to record {name}"
    page.keyboard.down(" ")
    expect(fifth.locator(".strip img")).not_to_have_count(0)
    page.keyboard.up(" ")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(fifth.locator("video")).to_be_hidden()
    assert focused(page) == f"Camera for {name}"
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.reload()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to 3 Try"
    page.keyboard.press("Enter")
    expect(page.locator("#try")).to_be_focused()
    for number in (number for name, number in class_numbers(server).items() if name in names):
        server.send("DELETE", f"/v1/classes/{number}")


SMALL = """() => [...document.querySelectorAll("button, label.button, input, summary, label:has([type=checkbox])")]
    .filter((element) => element.checkVisibility() && !element.closest(".button > *, label > *"))
    .map((element) => [element.outerHTML.slice(0, 90), element.getBoundingClientRect()])
    .filter(([_, box]) => box.height < 40 || box.width < 40).map(([html]) => html)"""


def test_a_phone(page: playwright.Page, server: Server) -> None:
    browser = page.context.browser
    assert browser is not None
    with browser.new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as phone:
        phone.goto(f"http://127.0.0.1:{server.port}/")
        expect(class_card(phone, "red").locator(".strip img")).to_have_count(6)
        expect(classify(phone, "red")).to_have_attribute("data-prediction", re.compile("."))
        for summary in phone.locator("summary").all():
            summary.click()
        assert phone.evaluate("document.documentElement.scrollWidth") == 390
        assert phone.evaluate(SMALL) == []
        phone.get_by_role("button", name="Edit red").tap()
        assert phone.evaluate(SMALL) == []
        assert serious_findings(phone) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: playwright.Page, server: Server, scheme: Any) -> None:
    browser = page.context.browser
    assert browser is not None
    with browser.new_page(color_scheme=scheme) as other:
        other.goto(f"http://127.0.0.1:{server.port}/")
        expect(class_card(other, "red").locator(".strip img")).to_have_count(6)
        expect(classify(other, "red")).to_have_attribute("data-prediction", re.compile("."))
        for summary in other.locator("summary").all():
            summary.click()
        class_card(other, "red").get_by_role("button", name="Camera").click()
        expect(class_card(other, "red").locator("video")).to_be_visible()
        assert serious_findings(other) == []


def test_the_snippets_use_the_model_that_was_taught(page: playwright.Page, server: Server, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(png(picture("green", 1001)))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    snippets, code = page.locator("#snippets"), {}
    for title in ("HTTP", "Python"):
        snippets.locator("details").filter(has_text=title).evaluate("(details) => (details.open = true)")
        snippets.get_by_role("button", name=f"Copy the {title} snippet").click()
        expect(page.locator("#message")).to_have_text("Copied.")
        code[title] = page.evaluate("navigator.clipboard.readText()")
    assert code["HTTP"] == f"curl -F image=@photo.jpg http://127.0.0.1:{server.port}/v1/predict"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download model.zip").click()
    zipfile.ZipFile(download.value.path()).extractall(tmp_path)
    words = [sys.executable, "-c", code["Python"]]
    output = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True).stdout
    assert output.startswith("green ")


def test_images_wait_while_the_server_is_gone(page: playwright.Page) -> None:
    card = add_class(page, "offline")
    page.context.set_offline(True)
    card.get_by_label("Add images").set_input_files(files("blue", 110, 1))
    expect(card.locator(".failures")).to_contain_text("a.png: the server does not respond.")
    page.context.set_offline(False)
    card.get_by_role("button", name="Try again").click()
    expect(card.locator(".facts")).to_contain_text("1 image learned")
    expect(card.locator(".failures li")).to_have_count(0)
    remove(page, "offline")
    page.get_by_role("button", name="Delete now").click()
    expect(card).to_have_count(0)


def test_names_are_text_and_a_phone_scrolls_one_way(page: playwright.Page, server: Server) -> None:
    restore_damaged_snapshot(page, server, "unreadable")
    card = add_class(page, HTML)
    expect(card.get_by_role("heading")).to_have_text(HTML)
    add_class(page, "w" * 100)
    card.get_by_label("Add images").set_input_files(files("red", 70, 1))
    expect(card.locator(".strip img")).to_have_attribute("alt", re.compile(re.escape(HTML)))
    assert page.title() == "DualNet live learner" and page.locator("img[src=x]").count() == 0
    expect(page.locator("#notices")).to_contain_text("holds no checkpoint")  # of the damaged snapshot
    page.set_viewport_size({"width": 320, "height": 568})
    assert page.evaluate("[innerWidth, document.body.scrollWidth - document.body.clientWidth]") == [320, 0]
    page.set_viewport_size({"width": 1280, "height": 900})


@contextlib.contextmanager
def proxy(port: int, prefix: str) -> Iterator[str]:
    """The address of a reverse proxy that removes a prefix from the path, and passes on all headers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection.request(self.command, self.path.removeprefix(prefix), body, {**self.headers})
            response = connection.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() != "transfer-encoding":
                    self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # the browser has gone
                while part := response.read1():
                    self.wfile.write(part)
            connection.close()

        do_GET = do_POST = do_PUT = do_DELETE = pass_on  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{prefix}/"
        server.shutdown()


def test_the_page_works_below_a_path_of_a_reverse_proxy(page: playwright.Page, server: Server) -> None:
    browser = page.context.browser
    assert browser is not None
    with proxy(server.port, "/some/path") as address, browser.new_page() as below:
        below.goto(address)
        card = add_class(below, "proxied")
        card.get_by_label("Add images").set_input_files(files("blue", 90, 1))
        expect(card.locator(".strip img")).to_have_count(1)  # after an event
        expect(below.locator("#server")).to_have_text("Connected")


def test_every_control_has_a_name(page: playwright.Page) -> None:
    controls = re.findall(
        r"- (?:button|textbox|checkbox|img|combobox|toolbar)\b.*", page.locator("body").aria_snapshot()
    )
    assert len(controls) > 20 and [line for line in controls if '"' not in line] == []


def test_a_file_that_is_not_an_image_is_reported(page: playwright.Page) -> None:
    wrong = {"name": "a.png", "mimeType": "image/png", "buffer": b"no image"}
    page.locator("#try input[type=file]").set_input_files([wrong])
    card = page.locator("#images .image").first
    expect(card.locator(".error")).to_have_text("a.png: the browser cannot read this image.")
    expect(card.get_by_role("button", name="Teach")).to_be_hidden()
    card.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("cannot read")).to_have_count(0)
    page.get_by_label("Add images to red").set_input_files([wrong])
    failures = class_card(page, "red").locator(".failures")
    expect(failures).to_contain_text("a.png: the browser cannot read this image.")
    failures.get_by_role("button").click()
    expect(failures).to_be_hidden()


def test_a_large_transparent_image_gets_a_white_background(page: playwright.Page, server: Server) -> None:
    before = server.get("/v1/examples")
    clear = {"name": "a.png", "mimeType": "image/png", "buffer": png(np.zeros((600, 600, 4), np.uint8))}
    page.locator("#try input[type=file]").set_input_files([clear])
    server.status_when(lambda _: server.get("/v1/examples") != before)
    stored = server.get(f"/v1/examples/{server.get('/v1/examples')[0]}/image")
    assert np.asarray(Image.open(io.BytesIO(stored))).min() > 250


def test_after_a_reload_and_a_restart_everything_is_shown_and_the_token_is_asked_for_once(
    page: playwright.Page, server: Server, tmp_path: Path
) -> None:
    page.reload()
    expect(class_card(page, "red").locator(".strip img")).to_have_count(6)
    assert server.end() == 130
    expect(page.get_by_role("alert")).to_be_visible()
    (tmp_path / "token").write_text(token := "a-token-of-some-length")
    again = Server(server.state, "--port", server.port, "--token-file", tmp_path / "token", "--share", 0.3)
    server.process, server.token = again.process, token
    for word in ("a wrong token", token):
        page.get_by_role("dialog").get_by_label("Token").fill(word)
        page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(class_card(page, "red").locator(".facts")).to_contain_text("2 test images right")
    expect(classify(page, "red")).to_have_attribute("data-prediction", re.compile("red|green|blue"))
    page.reload()
    expect(class_card(page, "red").locator(".strip img")).to_have_count(6)
    expect(page.get_by_role("dialog")).to_be_hidden()
