"""Shared by the tests of benchmarks."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def explained(tmp_path: Path) -> Callable[[Callable[[], object], str], None]:
    """explained(config.make, message): it fails with this message, in one line, and leaves no cache."""

    def check(make: Callable[[], object], message: str) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)
        assert not list((tmp_path / "cache").glob("*.*"))

    return check
