"""SIGKILL at random moments, under load."""

from pathlib import Path

import pytest
from serve_kills import kill_under_load

pytest.importorskip("fastapi")


def test_everything_acknowledged_is_stored_exactly_once(tmp_path: Path) -> None:
    load = kill_under_load(tmp_path, kills=3)
    assert len(load.labels) > 10 and len(load.short_lived) > 4
