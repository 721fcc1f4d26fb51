"""The published results: for each row its values, number of runs, source and protocol."""

from dataclasses import dataclass, field
from typing import Any

from dualnet.files import read_yaml
from dualnet.report.tables import METRICS
from dualnet.runs.option_files import shipped_files
from dualnet.ttest import Sample

from .table import FOLDER, PUBLISHED_FILE


@dataclass(frozen=True, slots=True)
class Published:
    source: str | None = None  # label of the table and line in the LaTeX source
    runs: int | None = None
    spread: str | None = None  # meaning of the number after ±: std
    metrics: dict[str, Sample] = field(default_factory=dict)  # some rows have no FM and LA
    protocol: dict[str, Any] = field(default_factory=dict)  # the manifest fields that the paper states
    note: str = ""


def read_published() -> tuple[dict[str, Published], dict[str, str]]:
    """Published results, and reasons for missing ones, both by the full name of the row."""
    file = next(path for path in shipped_files(FOLDER) if path.name == PUBLISHED_FILE)
    content = read_yaml(file)
    assert content["spread"] == "std"
    found: dict[str, Published] = {}
    missing: dict[str, str] = {}
    for table, facts in content["tables"].items():
        for name, group in facts["groups"].items():
            protocol, runs = content["protocols"][group["protocol"]], group["runs"]
            for row, written in group["rows"].items():
                values = {metric: written[metric] for metric in METRICS if metric in written}
                found[f"{table}/{name}/{row}"] = Published(
                    source=f"{facts['source']}, line {written['line']}",
                    runs=runs,
                    spread=content["spread"],
                    metrics={key: Sample(mean, std, runs) for key, (mean, std) in values.items()},
                    protocol={**protocol, **written.get("states", {})},
                    note=written.get("note", ""),
                )
            missing |= {f"{table}/{name}/{row}": why for row, why in group.get("not_available", {}).items()}
    return found, missing
