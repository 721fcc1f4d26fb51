"""`--version`, `--help` and `import dualnet` do not import PyTorch; interrupts."""

import re
import subprocess
import sys

import pytest
from commands import environment

import dualnet
from dualnet import cli
from dualnet.cli import flags


def test_version(capsys) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dualnet {dualnet.__version__}\n"


def test_the_package_can_be_run_as_a_module() -> None:
    command = [sys.executable, "-m", "dualnet", "--version"]
    assert subprocess.check_output(command, env=environment(), text=True) == f"dualnet {dualnet.__version__}\n"


def test_no_command_prints_help(capsys) -> None:
    """With the exit code of other tools on argparse, such as those of Hugging Face."""
    assert cli.main([]) == 1
    assert capsys.readouterr().out.startswith("usage: dualnet")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_knows_the_commands_and_flags(shell: str, capsys) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in (*COMMANDS, "--held-out-every", "--seeds"))


def test_bash_completes_a_command(capsys) -> None:
    pytest.importorskip("shtab")
    cli.main(["--print-completion", "bash"])
    typed = "COMP_WORDS=(dualnet ev); COMP_CWORD=1; _shtab_dualnet dualnet ev dualnet; echo ${COMPREPLY[@]}"
    script = capsys.readouterr().out + typed
    assert subprocess.check_output(["bash", "-c", script], text=True) == "evaluate\n"


COMMANDS = [*flags.make_parser()[1].choices]


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_mentions_no_file_that_is_missing_from_the_wheel(words: list[str], capsys) -> None:
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "usage: dualnet" in out
    assert not re.search(r"docs/|README|CONTRIBUTING|experiments/", out)


def test_help_does_not_import_pytorch() -> None:
    """Checks modules rather than time, which depends on the machine."""
    code = (
        "import sys, dualnet, dualnet.cli; [dualnet.cli.main(line.split()) for line in sys.argv[1:]];"
        "sys.exit(' '.join({'torch', 'numpy', 'rich', 'yaml', 'PIL', 'matplotlib'} & sys.modules.keys()) or 0)"
    )
    lines = ["--version", "--help", *(f"{command} --help" for command in COMMANDS)]
    done = subprocess.run([sys.executable, "-c", code, *lines], env=environment(), check=False)
    assert done.returncode == 0


def test_the_package_imports_its_names_lazily_and_does_not_need_scikit_learn() -> None:
    code = (
        "import sys, dualnet\n"
        "assert 'torch' not in sys.modules and {*dualnet.__all__, '__version__'} <= {*dir(dualnet)}\n"
        "from dualnet import ER, Batch, make_learner, load\n"
        "assert dualnet.LEARNERS['er'] is ER and dualnet.learners.ER is ER and dualnet.load is load\n"
        "assert not hasattr(dualnet, 'nothing')\n"
        "from dualnet import *\n"
        "assert StreamSpec is dualnet.StreamSpec and Model is dualnet.Model\n"
        "assert 'torch' in sys.modules and not {'sklearn', 'river'} & sys.modules.keys()\n"
        "sys.modules['sklearn'] = None\n"  # as where it is not installed
        "try:\n    dualnet.DualNetClassifier\n"
        "except ImportError as error:\n    sys.exit(\"pip install 'dualnet[sklearn]'\" not in str(error))\n"
        "sys.exit('imported')"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), check=False)
    assert done.returncode == 0
