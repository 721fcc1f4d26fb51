"""axe-core's accessibility checks of a page in a browser."""

from typing import Any

import pytest


def serious_findings(page: Any) -> list[str]:
    """What it finds serious or critical: the rule and the first element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install 'dualnet[dev]'")
    found = axe.Axe().run(page).response["violations"]
    assert axe.Axe().run(page).response["passes"] or found  # it has looked
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found if one["impact"] in ("serious", "critical")
    ]
