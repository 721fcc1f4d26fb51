"""`dualnet report`: what it writes, and which arguments it rejects."""

import subprocess
from pathlib import Path

import pytest
from commands import PROGRAM, environment, names_in

from dualnet import cli


def test_report_reads_what_run_wrote(trained: Path, capsys) -> None:
    assert cli.main(["report", str(trained), "--out", "report"]) == 0
    assert "tiny" in capsys.readouterr().out
    assert {"report.md", "report.html"} <= set(names_in("report"))


def test_a_report_into_a_file(trained: Path, error_line) -> None:
    line = error_line("report", trained, "--out", "tiny.yaml")
    assert line.startswith("dualnet: tiny.yaml") and "--out" in line


def test_an_unknown_picture_format_is_rejected_before_the_report_is_written(trained: Path, error_line) -> None:
    line = error_line("report", trained, "--out", "report", "--picture", "x.gif")
    assert "x.gif" in line and ".svg" in line
    assert not Path("report").exists()


def test_a_terminal_that_supports_only_ascii(trained: Path) -> None:
    """The report has dashes and ±."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [*PROGRAM, "report", str(trained), "--out", "report"]
    done = subprocess.run(command, env=environment(**locale), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and b"tiny" in done.stdout


@pytest.mark.parametrize("command", ["report", "learn"])
def test_only_a_command_that_continues_says_so_when_it_is_interrupted(
    command: str, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"dualnet.cli.{command}.main", interrupt)
    assert cli.main([command, "folder", "--out", "out"]) == 130
    continues = "; the same command continues from what was saved" if command == "learn" else ""
    assert capsys.readouterr().err == f"dualnet: stopped{continues}\n"
