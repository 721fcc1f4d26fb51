"""Ray is an extra: without it everything but --on ray and `dualnet cluster` is as before."""

import subprocess
import sys
import tomllib
from pathlib import Path

from commands import environment

BLOCKED = """
import sys
sys.modules["ray"] = None
import dualnet, dualnet.jobs.carried_runs, dualnet.jobs.ray_cluster
from dualnet import cli
print(cli.main(["list", "er"]), cli.main(["run", "demo-er", "--on", "ray"]), cli.main(["cluster"]))
"""


def test_the_package_is_imported_without_ray(tmp_path: Path) -> None:
    words = [sys.executable, "-c", BLOCKED]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 2 2" and "dualnet[ray]" in done.stderr
    assert done.stderr.count("pip install 'dualnet[ray]'") == done.stderr.count("\n") == 2, done.stderr
    assert list(tmp_path.iterdir()) == [], "before a folder is made"


def test_only_the_extra_requires_ray() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]
    extras = [name for name, packages in project["optional-dependencies"].items() if any(map(is_ray, packages))]
    assert extras == ["ray"] and not any(map(is_ray, project["dependencies"]))


def is_ray(requirement: str) -> bool:
    return requirement.startswith("ray")
