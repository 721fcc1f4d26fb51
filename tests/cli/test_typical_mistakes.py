"""Typical mistakes on the command line, each with the line that it gets."""

import shlex
from pathlib import Path

import pytest
from commands import picture
from PIL import Image

from dualnet import cli
from dualnet.cli import flags

MISTAKES = {  # by command
    "run demo-er --lr 0.1": "lr: unknown option; did you mean learner.lr?",
    "run demo-er --learner.updtes 3": "demo-er.yaml: learner.updtes: unknown option; did you mean learner.updates?",
    "run demo-er --epochs 5": "epochs: unknown option; there are name, seed, protocol, batch_size, ",
    "run demo-err": "demo-err: no such experiment; did you mean demo-er? Else give a .yaml file or a "
    "name (`dualnet list` has them)",
    "run demo-er --seeds 2-0": "argument --seeds: '2-0' is not a number of seeds such as 3, a range such as 0-2 or a "
    "list such as 0,1,2; see `dualnet run --help`",
    "reproduce table-11": "table-11: no such table; did you mean table-1? Else give a .yaml file or a "
    "name (`dualnet list` has them)",
    "predict notes.txt photo.jpg": "notes.txt: holds no checkpoint that can be read; give the folder of a run or ",
    "predict MODEL notes.txt": "notes.txt: unreadable image (not an image, or none of JPEG, PNG, BMP, WEBP, ",
    "predict MODEL cut-off.webp": "cut-off.webp: unreadable image (a WEBP that is truncated or damaged); replace it ",
    "learn empty --out mine": "empty: no class sub-folders; put the images of each class into a sub-folder ",
    "learn photos --out mine --learner.name dualnett": "learner.name: 'dualnett' is not one of dualnet, er, ",
    "report photos": "no runs found in photos; run an experiment first or give the folder that holds its runs",
    "serve --port 80000": "--port 80000: give 0 to 65535",
    "serve --state damaged": "damaged/journal.sqlite: damaged (file is not a database); put back what is lost, or ",
    "run demo-er --device gpu": "argument --device: invalid choice: 'gpu' (choose from",
    "train photos": "'train' is no command; `dualnet --help` lists them",
    "lern photos": "'lern' is no command; did you mean learn? `dualnet --help` lists them",
    "learn photos": "the following arguments are required: --out; see `dualnet learn --help`",
    "learn photos/apple --out mine": "photos/apple: the images of one class; did you mean photos, with a "
    "sub-folder per class?",
    "learn photos --out mine --lr 0.1": "lr: unknown option; did you mean learner.lr?",
    "learn fotos --out mine": "fotos: cannot be read as a folder (No such file or directory); name a folder with a "
    "sub-folder of images per class (looked for ",
    "predict MODEL": "the following arguments are required: IMAGE; see `dualnet predict --help`",
    "predict MODEL photo.jpg": "photo.jpg: unreadable image (No such file or directory); replace it or leave it out "
    "(--on-error skip",
    "evaluate MODEL photos/apple": "photos/apple: the images of one class; did you mean photos, with a "
    "sub-folder per class?",
    "export MODEL x.pt": "x.pt: the format is ONNX; give x.onnx",
    "serve --lr 0.1": "lr: unknown option; did you mean learner.lr?",
    "report missing": "missing is not a folder; give a folder that holds runs",
}


@pytest.mark.parametrize(("text", "seeds"), [("0", [0]), ("0-2", [0, 1, 2]), ("3-3", [3]), ("3,", [3]), ("1", [0])])
def test_seeds_mean_what_one_expects(text: str, seeds: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert flags.parse(["run", "demo-er", "--seeds", text])[0].seeds == seeds
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", MISTAKES)
def test_a_typical_mistake_gets_a_line_that_helps(
    command: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("apple", "pear")):
        Path("photos", name).mkdir(parents=True)
        picture(Path("photos", name, "1.png"), seed=number)
    Path("empty").mkdir()
    Path("damaged").mkdir()
    for file in ("notes.txt", "damaged/journal.sqlite"):
        Path(file).write_text("not what the command expects")
    Image.new("RGB", (50, 40)).save("whole.webp")
    Path("cut-off.webp").write_bytes(Path("whole.webp").read_bytes()[:-20])
    words = [str(trained) if word == "MODEL" else word for word in shlex.split(command)]
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dualnet: {MISTAKES[command]}")
