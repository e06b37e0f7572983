"""Prints this machine's pip settings of where packages come from as options of `uv pip install`.

uv does not read pip's configuration. Where that names no source, it requests CPU builds of torch:
the index has CUDA builds, of some gigabytes, that this engine's kernels do not use.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable

CPU_TORCH = ["--torch-backend", "cpu"]


def options(lines: Iterable[str]) -> list[str]:
    """Return the options for the lines of `pip config list`; a variable wins over a file."""
    sources: dict[str, list[str]] = {}
    for line in sorted(lines, reverse=True):  # ":env:" is sorted before the names of files
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name == "find-links" or name.endswith("-url"):
            sources[name] = str(ast.literal_eval(value)).split()
    if not sources:
        return CPU_TORCH
    listed = [
        word for name, values in sources.items() for each in values for word in (f"--{name}", each)
    ]
    # As pip does, take the best version of all sources, not those of the first that has any.
    return [*listed, "--index-strategy", "unsafe-best-match"]


if __name__ == "__main__":
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    sys.stdout.write("\n".join(options(done.stdout.splitlines())) + "\n")
