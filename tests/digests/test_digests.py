"""Results of small runs, bit by bit: a refactoring leaves them as they are (see compute.py)."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import compute

RECORDED = json.loads(compute.RECORD.read_text())


@pytest.mark.skipif(compute.machine() != RECORDED["machine"], reason=f"recorded on {RECORDED['machine']}")
@pytest.mark.parametrize("name", compute.experiments())
def test_results_have_the_recorded_bits(name: str, tmp_path: Path) -> None:
    assert compute.digests(tmp_path, [name]) == {name: RECORDED["digests"][name]}


@pytest.mark.skipif(compute.machine() == RECORDED["machine"], reason="compared with the record")
def test_results_have_the_bits_of_the_revision_before() -> None:
    """Both computed here, since bits depend on the processor; except for those whose record was changed on purpose."""
    if (revision := compute.base_revision()) is None:
        pytest.skip("needs the history of git")
    recorded = json.loads(compute.git("show", f"{revision}:tests/digests/digests.json"))["digests"]
    before, now = compute.at_commit(revision), compute.compute(compute.ROOT)
    same = [name for name in before.keys() & now.keys() if recorded.get(name) == RECORDED["digests"].get(name)]
    assert {name: now[name] for name in same} == {name: before[name] for name in same}
