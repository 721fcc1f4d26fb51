"""Results of small runs, bit by bit, as they were recorded: a refactoring leaves them alone (see compute.py)."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import compute

RECORDED = json.loads(compute.RECORD.read_text())


@pytest.mark.skipif(
    compute.machine() != RECORDED["machine"],
    reason=f"recorded on {RECORDED['machine']}, this is {compute.machine()}; use compute.py --against REV",
)
@pytest.mark.parametrize("name", compute.experiments())
def test_results_have_the_recorded_bits(name: str, tmp_path: Path) -> None:
    assert compute.digests(tmp_path, [name]) == {name: RECORDED["digests"][name]}
