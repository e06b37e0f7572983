"""Time from process start to first token, and memory then, in alternating processes.

Each generates one token from 16 prompt tokens, with a warm page cache. Prints medians.

Run: python -m benchmarks.peers.start --models FOLDER --peers FOLDER [--only NAME,NAME] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.peers.child import Child, unwind_on_terminate
from benchmarks.peers.contenders import Contender, Setup, choose, contenders


def start(contender: Contender, setup: Setup, log: Path) -> tuple[float, int]:
    """Start a contender once; return seconds until its first token, and memory in bytes."""
    with Child(contender.name, setup.command(contender), log, setup.env(contender)) as child:
        return child.hear_s(), child.pss_bytes()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Setup.add_arguments(parser)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="beginnings of names"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="options of this engine as JSON"
    )
    given = parser.parse_args()
    unwind_on_terminate()
    setup = Setup(given.models, given.peers, given.threads)
    chosen = [
        c for c in choose(contenders({16: given.engine}), [16], given.only) if not setup.missing(c)
    ]
    starts: dict[str, list[tuple[float, int]]] = {contender.name: [] for contender in chosen}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.rounds):
            for contender in chosen:
                starts[contender.name].append(start(contender, setup, Path(folder) / "log"))
    for name, found in starts.items():
        seconds, memory = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{name:<16} first token after {seconds:6.2f} s, {memory / 1e6:6.0f} MB")


if __name__ == "__main__":
    main()
