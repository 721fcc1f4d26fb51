"""Train the starter: `python -m starter.train --data data/mini-imagenet --width 20 --seconds 260 --out FILE`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from dualnet import atomic
from dualnet.batch import Batch, StreamSpec
from dualnet.engine import Engine, choose_device, precision_on
from dualnet.image_ops import network_input
from dualnet.learners import make_learner
from dualnet.nets import BatchNorm, Encoder
from dualnet.nets.start import load_weights, save_weights
from starter.card import Figures, card, figures
from starter.images import Images, read, read_glyphs
from starter.pretraining import Config, Pretraining

WARM_UP = 200  # steps in which the rate rises
IN_FLIGHT = 20  # steps that a GPU may be behind the clock
AT_THE_END = 10.0  # seconds, for statistics, figures and files
LINES = 25  # of progress
STATISTICS_BATCHES = 40  # of images as they are, for the BatchNorm statistics of the file


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        train(parser().parse_args(words), ["python", "-m", "starter.train", *words])
    except (ValueError, OSError) as error:
        print(f"starter: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m starter.train", description=__doc__)
    made.add_argument("--data", default="data/mini-imagenet", metavar="FOLDER", help="of the images and their lists")
    made.add_argument("--glyphs", default="data/glyphs.npz", metavar="FILE", help="that starter.glyphs wrote")
    made.add_argument("--width", type=int, default=20, help="of the encoder (default: 20)")
    made.add_argument("--seconds", type=float, default=260, help="for everything (default: 260)")
    made.add_argument("--steps", type=int, help="so many instead, however long they take")
    made.add_argument("--batch_size", type=int, default=512, help="images of a step (default: 512)")
    made.add_argument("--lr", type=float, default=Config.lr, help=f"the highest rate (default: {Config.lr})")
    made.add_argument("--image_size", type=int, default=64, help="side in pixels of the images (default: 64)")
    made.add_argument("--view_size", type=int, default=48, help="side in pixels of their views (default: 48)")
    made.add_argument("--held_out", type=int, default=20, help="test images of each class that are not learned")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    made.add_argument("--cache", metavar="FOLDER", help="of decoded images (default: the user's own)")
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="safetensors; a card comes beside it")
    return made


def train(options: argparse.Namespace, command: list[str]) -> None:
    clock, device = Clock(), choose_device(options.device)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    both = read(options.data, options.image_size, options.held_out, options.cache)
    photos, held_out = (part.to(device) for part in both)
    glyphs = read_glyphs(options.glyphs, options.image_size, int(photos.labels.max()) + 1).to(device)
    learned, drawn, tested = (len(part.labels) for part in (photos, glyphs, held_out))
    clock.say(f"{learned} photos and {drawn} characters to learn, {tested} photos held out, on {device}")
    learner = new_learner(options, int(glyphs.labels.max()) + 1, device)
    engine = Engine([learner], precision_on(device))
    stream = mixed(photos, glyphs, options, learner.config.num_glyphs)
    steps = optimize(engine, learner, stream, held_out, options, clock)
    learner.take_average()
    set_statistics(learner.net.encoder, engine, stream)
    found = write(options.out, learner, engine, photos, held_out)
    facts = {
        **vars(learner.config), **vars(options), "command": command, "device": device, "seconds": clock.seconds(),
        "steps": steps, "epochs": steps * (options.batch_size - learner.config.num_glyphs) / learned,
        "learned": learned, "drawn": drawn, "held_out": tested, "per_class": options.held_out,
    }  # fmt: skip
    atomic.write(options.out.with_suffix(".md"), card(found, **facts))
    size = options.out.stat().st_size / 1e6
    clock.say(f"{options.out}: {size:.1f} MB, held out {found.by_head:.1%}, by class means {found.by_mean:.1%}")


def write(file: Path, learner: Pretraining, engine: Engine, photos: Images, held_out: Images) -> Figures:
    """The file, and how good the weights are as they are in it."""
    _, height, width = learner.spec.image_shape
    metadata = {"width": str(learner.config.width), "image_size": f"{height} {width}", "data": "miniImageNet"}
    atomic.write(file, save_weights(learner.net.encoder, metadata))
    stored = Encoder(learner.config.width).to(engine.device)
    load_weights(stored, file)
    return figures(stored, learner.net.head, engine, photos, held_out)


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def say(self, text: str) -> None:
        print(f"{self.seconds():6.1f} s  {text}", flush=True)


def new_learner(options: argparse.Namespace, num_classes: int, device: torch.device) -> Pretraining:
    classes = torch.ones(1, num_classes, dtype=torch.bool)
    spec = StreamSpec((3, options.image_size, options.image_size), classes, options.view_size)
    config = Config(width=options.width, lr=options.lr, num_glyphs=options.batch_size // 8)
    learner = make_learner("starter.pretraining.Pretraining", spec, config, options.seed, str(device))
    assert isinstance(learner, Pretraining)
    return learner


def mixed(photos: Images, glyphs: Images, options: argparse.Namespace, num_glyphs: int) -> Iterator[Batch]:
    """Batches whose last images are characters."""
    parts = (photos, options.batch_size - num_glyphs), (glyphs, num_glyphs)
    for both in zip(*(rows(images, size, options.seed) for images, size in parts), strict=True):
        yield Batch(*(torch.cat(tensors) for tensors in zip(*both, strict=True)))


def rows(images: Images, size: int, seed: int) -> Iterator[Images]:
    """For ever, each epoch in an order of its own; what does not fill a batch is left out of the epoch."""
    if not 0 < size <= len(images.labels):
        raise ValueError(f"--batch_size: {size} of {len(images.labels)} images cannot be drawn; give another one")
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
    """Steps until the time is over. Returns how many."""
    rate = torch.zeros((), device=engine.device)
    learner.learn_at(rate)
    began, step, lines, done = clock.seconds(), 0, 0, 0.0
    while done < 1:
        rate.fill_(options.lr * share_of_rate(step, done))
        losses = engine.step([next(stream)])[0]
        step += 1
        done = step / options.steps if options.steps else share_of_time(engine.device, step, began, options, clock)
        if int(done * LINES) > lines:
            lines = int(done * LINES)
            report(engine, learner, losses, held_out, step, done, clock)
    return step


def share_of_time(device: torch.device, step: int, began: float, options: argparse.Namespace, clock: Clock) -> float:
    """By the clock, not by the time of the first steps: other programs may use the device too, now and then."""
    if device.type == "cuda" and step % IN_FLIGHT == 0:
        torch.cuda.synchronize(device)
    return (clock.seconds() - began) / max(options.seconds - AT_THE_END - began, 1e-9)


def share_of_rate(step: int, done: float) -> float:
    """A linear rise, then half a cosine."""
    return min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * done)) / 2


def report(engine, learner, losses, held_out, step, done, clock) -> None:
    values = {name: loss.item() for name, loss in losses.items()}
    if not all(math.isfinite(value) for value in values.values()):
        raise ValueError(f"--lr: at step {step} a loss is not finite {values}; give a lower rate")
    answers = torch.cat([engine.logits(learner, part).argmax(dim=1) for part in held_out.images.split(500)])
    accuracy = (answers == held_out.labels).float().mean().item()
    said = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
    clock.say(f"{done:4.0%}  step {step}  {said}  held out {accuracy:.1%}")


@torch.no_grad()
def set_statistics(encoder: Encoder, engine: Engine, stream: Iterator[Batch]) -> None:
    """BatchNorm statistics of images as they are: those that learning left are of views, and lag behind the weights."""
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
