"""Prints a constraints file without the pins of distributions that are already importable."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def present(name: str) -> bool:
    """Return whether a distribution is installed, or visible in the system's packages."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


for line in Path(sys.argv[1]).read_text().splitlines():
    name = line.partition("==")[0].strip()
    if name and not name.startswith("#") and not present(name):
        sys.stdout.write(line + "\n")
