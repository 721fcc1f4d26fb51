"""The page in a real browser, against a real server. A test may use the classes red, green and blue, or add its own."""

import base64
import contextlib
import http.client
import http.server
import io
import re
import shutil
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
    expected = ("ERR_CONNECTION_REFUSED", "status of 401", "status of 409")
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
    page.locator("#ask input[type=file]").set_input_files(files(colour, 1000, 1))
    return page.locator(".image").first


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
    expect(class_card(page, "green").locator(".memory img")).to_have_count(4)
    expect_prediction(page, "red")
    expect_prediction(page, "green")
    button = add_class(page, "blue").get_by_role("button", name="Take photos of blue")
    page.evaluate(PASTED, [button.element_handle(), as_text(six("blue"))])
    expect(class_card(page, "blue").locator(".memory img")).to_have_count(4)


def test_classes_taught_in_sequence_are_all_predicted_correctly(page: playwright.Page) -> None:
    for colour in ("blue", "red", "green"):
        expect_prediction(page, colour)
    expect(page.locator("#accuracy .legend li")).to_have_text(
        [re.compile(f"^{colour} ") for colour in ("red", "green", "blue")]
    )
    for chart in ("accuracy", "losses", "slow", "steps"):
        assert page.locator(f"#{chart} path.line").count() >= 1


def test_a_prediction_is_corrected_with_one_click_and_the_image_deleted(page: playwright.Page, server: Server) -> None:
    before = {row["name"]: row["examples"] for row in server.get("/v1/classes")}
    card = classify(page, "blue")
    card.get_by_role("button", name="green").click()
    expect(card.get_by_role("button", name="green")).to_have_attribute("aria-pressed", "true")
    assert {row["name"]: row["examples"] for row in server.get("/v1/classes")} == before | {
        "green": before["green"] + 1
    }
    card.get_by_label("Another class").fill("sky")
    card.get_by_role("button", name="Teach").click()
    expect(class_card(page, "sky").locator(".facts")).to_contain_text("1 image ")
    class_card(page, "sky").locator(".memory button").press("Enter")
    expect(card).to_be_focused()
    card.get_by_role("button", name="Delete").click()
    expect(class_card(page, "sky").locator(".facts")).to_contain_text("0 images · 0 in memory")
    assert {row["name"]: row["examples"] for row in server.get("/v1/classes")} == before | {"sky": 0}


def test_an_image_that_is_taught_is_sent_once(page: playwright.Page, server: Server) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    card = add_class(page, "once")
    with page.expect_response("**/v1/predictions?**"):  # of all cards, after the model has changed
        card.get_by_label("Add images").set_input_files(files("blue", 95, 1))
    expect(card.locator(".memory img")).to_have_count(1)
    assert [url.rpartition("/")[2] for url in sent] == ["classes", "examples?top=1000"]
    server.send("DELETE", f"/v1/classes/{class_numbers(server)['once']}")  # its image looks like another class


def test_a_photo_is_taken_with_the_camera(page: playwright.Page) -> None:
    card = add_class(page, "photo")
    card.get_by_role("button", name="Take photos").click()
    expect(page.locator("video")).to_have_js_property("readyState", 4)
    page.get_by_role("button", name="Take photo", exact=True).click()
    page.keyboard.press("Escape")
    expect(card.locator(".facts")).to_contain_text("1 image ")
    assert page.evaluate("document.querySelector('video').srcObject.active") is False


def test_pause_and_snapshots(page: playwright.Page, server: Server) -> None:
    memory = add_class(page, "kept").locator(".memory img")
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
    expect(memory).to_have_count(1)
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def restore_damaged_snapshot(page: playwright.Page, server: Server, title: str) -> int:
    page.get_by_label("Title of the snapshot").fill(title)
    page.get_by_role("button", name="Take snapshot").click()
    restore = page.get_by_role("button", name=f"Restore {title}")
    expect(restore).to_be_visible()
    number = server.get("/v1/snapshots")[-1]["number"]
    (server.state / "snapshots" / str(number) / "checkpoint/step-00000001.safetensors").write_text("{")
    restore.click()
    expect(page.locator("#message")).to_contain_text(f"snapshot {number} cannot be read")
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
    expect(page.locator("#message")).to_contain_text("class 'red' already exists")
    page.get_by_role("button", name="Edit cloud").click()
    name.fill(" heaven ")
    page.keyboard.press("Enter")
    renamed = class_card(page, "heaven")
    expect(renamed.locator(".memory img").first).to_have_attribute("alt", "image of heaven")
    expect(card.locator(".summary")).to_contain_text("Taught as heaven")
    expect(card.get_by_role("button", name="heaven")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="cloud")).to_have_count(0)  # of this class, nor of a prediction
    now = class_numbers(server)
    assert [*now] == [*old, "heaven"]
    card.get_by_role("button", name="Delete").click()
    server.send("PUT", f"/v1/classes/{now['heaven']}/name", {"name": "cloud"})  # by another client
    expect(class_card(page, "cloud")).to_be_visible()
    expect(renamed).to_have_count(0)


def test_a_class_is_renamed_while_its_images_are_loaded(page: playwright.Page, server: Server) -> None:
    card, images, memory = add_class(page, "early"), "**/v1/examples/*/image", "**/v1/memory"
    held: dict[str, list[playwright.Route] | None] = {images: [], memory: None}  # None: they continue at once

    def hold(pattern: str) -> None:
        def handle(route: playwright.Route) -> None:
            waiting = held[pattern]
            route.continue_() if waiting is None else waiting.append(route)

        page.route(pattern, handle)

    def release(pattern: str) -> None:
        waiting, held[pattern] = held[pattern], None
        for route in waiting or ():
            route.continue_()

    hold(images)
    hold(memory)
    card.get_by_label("Add images").set_input_files(files("blue", 85, 1))
    for _ in range(400):  # up to 20 s
        if held[images]:
            break
        page.wait_for_timeout(50)
    assert held[images]
    held[memory] = []  # the list with the new name comes after the image
    page.get_by_role("button", name="Edit early").click()
    page.get_by_role("dialog").get_by_label("Name of the class").fill("late")
    page.keyboard.press("Enter")
    expect(class_card(page, "late")).to_be_visible()
    with page.expect_response(images):
        release(images)
    release(memory)
    expect(class_card(page, "late").locator(".memory img")).to_have_attribute("alt", "image of late")
    page.unroute_all()
    server.send("PUT", f"/v1/classes/{class_numbers(server)['late']}/name", {"name": "latest"})  # by another client
    expect(class_card(page, "latest").locator(".memory img")).to_have_attribute("alt", "image of latest")


def test_a_class_is_removed_with_its_images(page: playwright.Page, server: Server) -> None:
    old = class_numbers(server)
    card = add_class(page, "mistake")
    card.get_by_label("Add images").set_input_files(files("blue", 80, 1))
    expect(card.locator(".memory img")).to_have_count(1)
    expect(page.locator(".image .summary").first).to_contain_text("Taught as mistake")
    before = page.locator(".image").count()
    page.get_by_role("button", name="Edit mistake").click()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Edit mistake").click()
    page.get_by_role("button", name="Remove class").click()
    expect(card).to_have_count(0)
    expect(page.locator("#message")).to_contain_text("mistake removed")
    expect(page.locator(".image")).to_have_count(before - 1)
    expect(page.get_by_role("button", name="mistake")).to_have_count(0)
    assert class_numbers(server) == old
    page.reload()
    expect(class_card(page, "red").locator(".memory img")).to_have_count(4)
    expect(card).to_have_count(0)


def test_names_are_text_and_a_phone_scrolls_one_way(page: playwright.Page, server: Server) -> None:
    restore_damaged_snapshot(page, server, "unreadable")
    card = add_class(page, HTML)
    expect(card.get_by_role("heading")).to_have_text(HTML)
    add_class(page, "w" * 100)
    card.get_by_label("Add images").set_input_files(files("red", 70, 1))
    expect(page.locator(".image .summary").first).to_contain_text(HTML)
    assert page.title() == "DualNet live learner" and page.locator("img[src=x]").count() == 0
    expect(page.locator("#notices")).to_contain_text("holds no checkpoint")  # of the damaged snapshot
    page.set_viewport_size({"width": 320, "height": 568})
    assert page.evaluate("document.documentElement.scrollWidth") == 320
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
        expect(card.locator(".memory img")).to_have_count(1)  # after an event
        expect(below.locator("#server")).to_have_text("Connected")


def test_every_control_has_a_name(page: playwright.Page) -> None:
    controls = re.findall(r"- (?:button|textbox|checkbox|img|combobox)\b.*", page.locator("body").aria_snapshot())
    assert len(controls) > 20 and [line for line in controls if '"' not in line] == []


def test_a_file_that_is_not_an_image_is_reported(page: playwright.Page) -> None:
    wrong = {"name": "a.png", "mimeType": "image/png", "buffer": b"no image"}
    page.locator("#ask input[type=file]").set_input_files([wrong])
    expect(page.locator(".image .again").first).to_be_visible()


def test_a_large_transparent_image_gets_a_white_background(page: playwright.Page, server: Server) -> None:
    before = server.get("/v1/examples")
    clear = {"name": "a.png", "mimeType": "image/png", "buffer": png(np.zeros((600, 600, 4), np.uint8))}
    page.locator("#ask input[type=file]").set_input_files([clear])
    server.status_when(lambda _: server.get("/v1/examples") != before)
    stored = server.get(f"/v1/examples/{server.get('/v1/examples')[0]}/image")
    assert np.asarray(Image.open(io.BytesIO(stored))).min() > 250


def test_after_a_reload_and_a_restart_everything_is_shown_and_the_token_is_asked_for_once(
    page: playwright.Page, server: Server, tmp_path: Path
) -> None:
    page.reload()
    expect(class_card(page, "red").locator(".memory img")).to_have_count(4)
    assert server.end() == 130
    expect(page.get_by_role("alert")).to_be_visible()
    (tmp_path / "token").write_text(token := "a-token-of-some-length")
    again = Server(server.state, "--port", server.port, "--token-file", tmp_path / "token", "--share", 0.3)
    server.process, server.token = again.process, token
    for word in ("a wrong token", token):
        page.get_by_role("dialog").get_by_label("Token").fill(word)
        page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_hidden()
    for colour in ("red", "green", "blue"):
        expect_prediction(page, colour)
    page.reload()
    expect(class_card(page, "red").locator(".memory img")).to_have_count(4)
    expect(page.get_by_role("dialog")).to_be_hidden()
