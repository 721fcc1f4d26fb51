"""axe-core's accessibility checks of a page in a browser."""

from typing import Any

import pytest


def serious_findings(page: Any) -> list[str]:
    """What it finds serious or critical: the rule and the first element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install 'dualnet[dev]'")
    results = axe.Axe().run(page, options={"resultTypes": ["violations", "passes"]}).response
    assert len(results["passes"]) > 10, "it has looked"
    found = [one for one in results["violations"] if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
