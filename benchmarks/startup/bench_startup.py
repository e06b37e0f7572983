"""Time from start to first token, compared with `import torch, transformers`.

Whole processes, interleaved, medians. `engine generate` of one token, exit included, is an upper
bound. A tiny checkpoint is created; a real one is also compared with reading its weight files.

Run: python benchmarks/startup/bench_startup.py [--model FOLDER] [--rounds N] [--cold]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

IMPORTS = (sys.executable, "-c", "import torch, transformers")
PIECE_BYTES = 1 << 24


def generate(model: Path) -> tuple[str, ...]:
    """Return the command that generates one token."""
    start = "import sys; from core.cli.main import main; sys.exit(main())"
    flags = ("--prompt", "hello", "--max-tokens", "1", "--ignore-eos", "--log-level", "error")
    return (sys.executable, "-c", start, "generate", str(model), *flags)


def process_s(command: Sequence[str]) -> float:
    """Return the time of a process in seconds. Raises when it fails."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def read_s(files: Sequence[Path]) -> float:
    """Return the time of reading files in seconds."""
    piece = bytearray(PIECE_BYTES)
    started = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(piece):
                pass
    return time.perf_counter() - started


def forget(files: Sequence[Path]) -> None:
    """Drop files from the page cache, if the system follows the advice."""
    os.sync()
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(model: Path, rounds: int, *, cold: bool = False) -> dict[str, list[float]]:
    """Return the seconds of each round for `imports`, `read` and `generate`."""
    weights = sorted(model.glob("*.safetensors"))
    times: dict[str, list[float]] = {"imports": [], "read": [], "generate": []}
    for _ in range(rounds):
        times["imports"].append(process_s(IMPORTS))
        if cold:
            forget(weights)
        times["read"].append(read_s(weights))
        if cold:
            forget(weights)
        times["generate"].append(process_s(generate(model)))
    return times


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of a checkpoint; default: a tiny one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cold", action="store_true", help="drop the weights from the page cache before each use"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or make_tiny(Path(folder))
        times = measure(model, args.rounds, cold=args.cold)
    imports, read, first = (
        statistics.median(times[name]) for name in ("imports", "read", "generate")
    )
    print(f"import torch, transformers   {imports:6.2f} s")
    print(f"reading the weight files     {read:6.2f} s")
    print(f"start to first token         {first:6.2f} s")
    print(f"over the imports             {first / imports:6.2f} x")
    print(f"over imports and two reads   {first / (imports + 2 * read):6.2f} x")


def make_tiny(folder: Path) -> Path:
    """Write a tiny checkpoint and return its folder."""
    from core.testing.checkpoints import make_checkpoint  # lazy: only for the tiny model

    return make_checkpoint("LlamaForCausalLM", folder)


if __name__ == "__main__":
    main()
