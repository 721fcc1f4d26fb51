"""The wheel: laid out as pyproject.toml says, the package finds its experiments, searches and tables by itself."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from dualnet.experiments.named_files import shipped_files
from dualnet.reproduce import shipped_tables

ROOT = Path(__file__).parent.parent
FOUND = """
import dualnet
from dualnet.reproduce import read_rows, shipped_tables
from dualnet.reproduce.ledger import read_published
from dualnet.experiments.named_files import shipped_files
read_rows("all"), read_published()
print(dualnet.__file__)
print(*(path.name for path in shipped_files()))
print(*(path.name for path in shipped_files("search")))
print(*shipped_tables())
"""


def lay_out(site: Path) -> None:
    """By links, where a wheel has copies."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        target = site / Path(package).name
        target.mkdir(parents=True)
        for entry in (ROOT / package).iterdir():
            (target / entry.name).symlink_to(entry)
    for source, target in wheel["force-include"].items():
        (site / target).symlink_to(ROOT / source)


def test_what_an_installed_package_finds(tmp_path: Path) -> None:
    lay_out(tmp_path / "lib" / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lib" / "site")}
    done = subprocess.run(
        [sys.executable, "-c", FOUND], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    home, experiments, searches, tables = done.stdout.splitlines()
    assert home == str(tmp_path / "lib" / "site" / "dualnet" / "__init__.py")
    assert experiments.split() == [path.name for path in shipped_files()]
    assert searches.split() == [path.name for path in shipped_files("search")]
    assert tables.split() == shipped_tables()


def test_all_that_is_shipped_lies_in_known_places() -> None:
    """A file in another folder below experiments/ would be in the wheel and never be found."""
    known = {*shipped_files(), *shipped_files("search"), *shipped_files("tables")}
    assert known == set((ROOT / "experiments").rglob("*.yaml"))
