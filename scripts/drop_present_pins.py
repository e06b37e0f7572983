"""Prints a constraints file without the pins of distributions that can already be imported from
here.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def present(name: str) -> bool:
    """Say whether a distribution of this name is installed, or visible through the system's
    packages.
    """
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


for line in Path(sys.argv[1]).read_text().splitlines():
    name = line.partition("==")[0].strip()
    if name and not name.startswith("#") and not present(name):
        sys.stdout.write(line + "\n")
