"""Train the starter: `python -m starter.train --data data/mini-imagenet --width 20 --seconds 260 --out FILE`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from dualnet import atomic
from dualnet.batch import Batch, StreamSpec
from dualnet.engine import Engine, precision_on
from dualnet.image_ops import network_input
from dualnet.learners import make_learner
from dualnet.learners.shared_options import EncoderOptions
from dualnet.machine import choose_device
from dualnet.nets import BaseEncoder, BatchNorm, Encoder
from dualnet.nets.weights import load_weights
from starter.card import Accuracy, card, evaluate
from starter.images import Images, read, read_glyphs
from starter.pretraining import Config, Pretraining

WARM_UP = 200  # steps of linear increase of the learning rate
SYNCHRONISE_EVERY = 20  # steps on a GPU, which would otherwise fall behind the clock
RESERVED_SECONDS = 10.0  # at the end, for statistics, evaluation and files
PROGRESS_LINES = 25
STATISTICS_BATCHES = 40  # without augmentation, for the final BatchNorm statistics


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        train(make_parser().parse_args(words), ["python", "-m", "starter.train", *words])
    except (ValueError, OSError) as error:
        print(f"starter: {error}", file=sys.stderr)
        return 2
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m starter.train", description=__doc__)
    parser.add_argument("--data", default="data/mini-imagenet", metavar="FOLDER", help="miniImageNet: images and lists")
    parser.add_argument("--glyphs", default="data/glyphs.npz", metavar="FILE", help="output of starter.glyphs")
    parser.add_argument("--width", type=int, default=20, help="width of the encoder (default: 20)")
    parser.add_argument("--seconds", type=float, default=260, help="total time (default: 260)")
    parser.add_argument("--steps", type=int, help="number of steps, instead of --seconds")
    parser.add_argument("--batch_size", type=int, default=512, help="images per step (default: 512)")
    parser.add_argument("--lr", type=float, default=Config.lr, help=f"highest learning rate (default: {Config.lr})")
    parser.add_argument("--image_size", type=int, default=64, help="side in pixels of the images (default: 64)")
    parser.add_argument("--view_size", type=int, default=48, help="side in pixels of their views (default: 48)")
    parser.add_argument("--held_out", type=int, default=20, help="test images per class that are held out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--cache", metavar="FOLDER", help="cache of decoded images (default: ~/.cache/dualnet)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="safetensors; the model card is .md")
    return parser


def train(options: argparse.Namespace, command: list[str]) -> None:
    clock, device = Clock(), choose_device(options.device)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    images = read(options.data, options.image_size, options.held_out, options.cache)
    photos, held_out = (part.to(device) for part in images)
    glyphs = read_glyphs(options.glyphs, options.image_size, int(photos.labels.max()) + 1).to(device)
    learned, drawn, tested = (len(part.labels) for part in (photos, glyphs, held_out))
    clock.log(f"{learned} photos and {drawn} characters to learn, {tested} photos held out, on {device}")
    learner = new_learner(options, int(glyphs.labels.max()) + 1, device)
    engine = Engine([learner], precision_on(device))
    stream = batches(photos, glyphs, options, learner.config.num_glyphs)
    steps = optimize(engine, learner, stream, held_out, options, clock)
    learner.use_averaged_weights()
    set_statistics(learner.net.encoder, engine, stream)
    accuracy = write(options.out, learner, engine, photos, held_out)
    facts = {
        **vars(learner.config), **vars(options), "command": command, "device": device, "seconds": clock.seconds(),
        "steps": steps, "epochs": steps * (options.batch_size - learner.config.num_glyphs) / learned,
        "learned": learned, "drawn": drawn, "held_out": tested, "per_class": options.held_out,
    }  # fmt: skip
    atomic.write(options.out.with_suffix(".md"), card(accuracy, **facts))
    size = options.out.stat().st_size / 1e6
    clock.log(f"{options.out}: {size:.1f} MB, held out {accuracy.by_head:.1%}, by class means {accuracy.by_mean:.1%}")


def write(file: Path, learner: Pretraining, engine: Engine, photos: Images, held_out: Images) -> Accuracy:
    """Write the weights to the file. Returns the accuracy of the weights as stored."""
    _, height, width = learner.spec.image_shape
    metadata = {"width": str(learner.config.encoder.width), "image_size": f"{height} {width}", "data": "miniImageNet"}
    atomic.write(file, save_weights(learner.net.encoder, metadata))
    stored = Encoder(learner.config.encoder.width).to(engine.device)
    load_weights(stored, file)
    return evaluate(stored, learner.net.head, engine, photos, held_out)


def save_weights(encoder: nn.Module, metadata: dict[str, str]) -> bytes:
    """The content of a file: convolutions as float16, which halves its size, BatchNorm as float32."""
    tensors = {
        name: tensor.detach().cpu().to(torch.float16 if tensor.dim() > 1 else torch.float32).contiguous()
        for name, tensor in encoder.state_dict().items()
    }
    return safetensors.torch.save(tensors, metadata)


class Clock:
    """The time since its construction."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def log(self, text: str) -> None:
        print(f"{self.seconds():6.1f} s  {text}", flush=True)


def new_learner(options: argparse.Namespace, num_classes: int, device: torch.device) -> Pretraining:
    classes = torch.ones(1, num_classes, dtype=torch.bool)
    spec = StreamSpec((3, options.image_size, options.image_size), classes, options.view_size)
    config = Config(EncoderOptions(width=options.width), lr=options.lr, num_glyphs=options.batch_size // 8)
    learner = make_learner("starter.pretraining.Pretraining", spec, config, options.seed, str(device))
    assert isinstance(learner, Pretraining)
    return learner


def batches(photos: Images, glyphs: Images, options: argparse.Namespace, num_glyphs: int) -> Iterator[Batch]:
    """Batches of photos, with characters at the end."""
    parts = (photos, options.batch_size - num_glyphs), (glyphs, num_glyphs)
    for pair in zip(*(shuffled(images, size, options.seed) for images, size in parts), strict=True):
        yield Batch(*(torch.cat(tensors) for tensors in zip(*pair, strict=True)))


def shuffled(images: Images, size: int, seed: int) -> Iterator[Images]:
    """Endless batches, in a new order for each epoch. Images that do not fill a batch are skipped in that epoch."""
    if not 0 < size <= len(images.labels):
        raise ValueError(f"--batch_size: {size} of {len(images.labels)} images cannot be drawn; use another size")
    generator = torch.Generator(images.labels.device).manual_seed(seed)
    while True:
        order = torch.randperm(len(images.labels), generator=generator, device=images.labels.device)
        for chosen in order[: len(order) // size * size].split(size):
            yield Images(images.images[chosen], images.labels[chosen])


def optimize(
    engine: Engine,
    learner: Pretraining,
    stream: Iterator[Batch],
    held_out: Images,
    options: argparse.Namespace,
    clock: Clock,
) -> int:
    """Train until the time or the number of steps is over. Returns the number of steps."""
    rate = torch.zeros((), device=engine.device)
    learner.set_learning_rate(rate)
    start, step, lines, done = clock.seconds(), 0, 0, 0.0
    while done < 1:
        rate.fill_(options.lr * rate_factor(step, done))
        losses = engine.step([next(stream)])[0]
        step += 1
        done = step / options.steps if options.steps else elapsed_share(engine.device, step, start, options, clock)
        if int(done * PROGRESS_LINES) > lines:
            lines = int(done * PROGRESS_LINES)
            report(engine, learner, losses, held_out, step, done, clock)
    return step


def elapsed_share(device: torch.device, step: int, start: float, options: argparse.Namespace, clock: Clock) -> float:
    """Measured, not extrapolated from the first steps, because other programs may share the device."""
    if device.type == "cuda" and step % SYNCHRONISE_EVERY == 0:
        torch.cuda.synchronize(device)
    return (clock.seconds() - start) / max(options.seconds - RESERVED_SECONDS - start, 1e-9)


def rate_factor(step: int, done: float) -> float:
    """The schedule of the learning rate: linear warm-up and cosine decay."""
    return min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * done)) / 2


def report(engine, learner, losses, held_out, step, done, clock) -> None:
    values = {name: loss.item() for name, loss in losses.items()}
    if not all(math.isfinite(value) for value in values.values()):
        raise ValueError(f"--lr: at step {step} a loss is not finite {values}; use a lower rate")
    predictions = torch.cat([engine.logits(learner, part).argmax(dim=1) for part in held_out.images.split(500)])
    accuracy = (predictions == held_out.labels).float().mean().item()
    losses_text = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
    clock.log(f"{done:4.0%}  step {step}  {losses_text}  held out {accuracy:.1%}")


@torch.no_grad()
def set_statistics(encoder: BaseEncoder, engine: Engine, stream: Iterator[Batch]) -> None:
    """Recompute BatchNorm statistics without augmentation: those of training belong to views and lag behind."""
    norms = [module for module in encoder.modules() if isinstance(module, BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    encoder.train()
    for number in range(STATISTICS_BATCHES):
        for norm in norms:
            norm.momentum = 1 / (number + 1)  # the mean over all batches
        images = next(stream).images
        with engine.autocast():
            encoder(network_input(images, (images.shape[2], images.shape[3])))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


if __name__ == "__main__":
    sys.exit(main())
