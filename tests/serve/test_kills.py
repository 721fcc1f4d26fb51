"""SIGKILL at random moments, under load."""

from pathlib import Path

import pytest
from serve_kills import FEW, kill_under_load

pytest.importorskip("fastapi")


@pytest.mark.parametrize(("kills", "live"), [(2, False), (1, True)])
def test_everything_acknowledged_is_stored_exactly_once(tmp_path: Path, kills: int, live: bool) -> None:
    load = kill_under_load(tmp_path, kills, live=live)
    assert len(load.labels) >= FEW and load.short_lived
