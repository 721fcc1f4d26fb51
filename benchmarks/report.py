"""Benchmark results: figures with units, and the machine they were measured on, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table

from dualnet.machine import cpu_name, num_cores


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    value: float | None  # None: not measured, for the reason in the note
    unit: str
    note: str = ""
    section: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    environment: dict[str, Any]
    figures: list[Figure]
    failed: list[str]  # sections

    def table(self) -> Table:
        device, versions = self.environment["device"], f"torch {self.environment['torch']}"
        table = Table("what", title=f"{device}, {versions}, Python {self.environment['python']}", title_justify="left")
        if self.environment["load"] > 0.5 * self.environment["cpu_cores"]:
            table.caption = (
                f"Other processes were running (load {self.environment['load']}): times on the CPU are too long."
            )
        table.add_column("value", justify="right")
        table.add_column("unit")
        table.add_column("note")
        section = None
        for figure in self.figures:
            if figure.section != section:
                section = figure.section
                table.add_section()
                table.add_row(f"[bold]{section}")
            table.add_row(figure.what, value_text(figure.value), figure.unit, figure.note)
        return table

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"


def value_text(value: float | None) -> str:
    """Three significant digits, or all digits before the decimal point.

    >>> value_text(0.01234), value_text(12.345), value_text(51000.4), value_text(None)
    ('0.0123', '12.3', '51,000', '-')
    """
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def environment(device: torch.device, sizes: Any) -> dict[str, Any]:
    """Hardware and versions that affect speed, without anything that identifies the computer or its user."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "device_type": device.type,
        "cpu": cpu_name(),
        "cpu_cores": num_cores(),
        "load": round(os.getloadavg()[0], 2),  # average number of running processes before the benchmark
        "torch_threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.system(),
        "sizes": asdict(sizes),
    }


def milliseconds(what: str, seconds: float, note: str = "") -> Figure:
    return Figure(what, 1e3 * seconds, "ms", note)
