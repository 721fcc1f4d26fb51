"""Speed and memory on this machine: `python -m benchmarks` in a checkout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import SECTIONS, bench
from dualnet import atomic


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return run_benchmarks(parser().parse_args(argv))
    except (ValueError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


def run_benchmarks(arguments: argparse.Namespace) -> int:
    if arguments.out is not None and not arguments.out.parent.is_dir():
        raise ValueError(f"--out {arguments.out}: there is no folder {arguments.out.parent}; make it first")
    with Console(stderr=True).status("measuring") as status:
        results = bench(
            arguments.device,
            arguments.only,
            arguments.small,
            arguments.images,
            arguments.repeats,
            progress=lambda section: status.update(f"measuring {section}"),
        )
    Console(width=None if sys.stdout.isatty() else 140).print(results.table())
    if arguments.out is not None:
        atomic.write(arguments.out, results.json())
    if results.failed:
        print(f"failed: {', '.join(results.failed)}; the table says why", file=sys.stderr)
    return 1 if results.failed else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    made.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    made.add_argument("--out", type=Path, metavar="FILE", help="also write the results as JSON")
    made.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        metavar="SECTION,...",
        help=f"which of {', '.join(SECTIONS)} (default: all)",
    )
    made.add_argument(
        "--small",
        action=argparse.BooleanOptionalAction,
        help="small networks and images, for a few cores (default: without a GPU)",
    )
    made.add_argument("--images", type=int, metavar="N", help="number of files in the image cache (default: 2000)")
    made.add_argument(
        "--repeats", type=int, metavar="N", help="number of repetitions of each measurement (default: 20; small: 7)"
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
