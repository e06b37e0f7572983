"""Hashes of the files that a distribution's packages are imported from, wherever they lie.

What an installer wrote down (RECORD) is no proof: a file may be edited behind it, and an editable
install lists none of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from importlib_metadata import PackageNotFoundError, distribution

Files = Mapping[str, Mapping[str, str]]
"""By distribution, the SHA-256 of each file by its path from the folder that its top package is in.
"""
_CODE: Final = frozenset({".py", ".so", ".pyd", ".dylib", ".dll"})
_MOST_NAMED: Final = 5


def files_of(name: str, targets: Iterable[str]) -> dict[str, str]:
    """Return the hashes of every file of code in the packages of a distribution: its plugins' and
    all others it names.
    """
    tops = {target.partition(".")[0] for target in targets} | _tops(name)
    return dict(sorted((place, _sha256(file)) for top in tops for place, file in _code(top)))


def changed_files(locked: Files) -> list[str]:
    """Return a sentence for each distribution whose files are not those that were written down,
    naming the files.
    """
    found = []
    for name, before in locked.items():
        now = files_of(name, (place.partition("/")[0].removesuffix(".py") for place in before))
        words = [
            *(
                f"{place} is edited"
                for place, sha256 in before.items()
                if now.get(place, sha256) != sha256
            ),
            *(f"{place} is missing" for place in before if place not in now),
            *(f"{place} is new" for place in now if place not in before),
        ]
        if words:
            more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
            found.append(f"of {_shown(name)}, {', '.join(words[:_MOST_NAMED])}{more}")
    return found


def _shown(name: str) -> str:
    try:
        return f"{name} {distribution(name).version}"
    except PackageNotFoundError:
        return name


def _tops(name: str) -> set[str]:
    """Return the top packages and modules that a distribution's metadata names; none where it is
    not installed.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return set()
    listed = {
        file.parts[0]
        for file in found.files or ()
        if str(file).endswith(".py") and ".." not in file.parts
    }
    names = {
        *(found.read_text("top_level.txt") or "").split(),
        *(part.removesuffix(".py") for part in listed),
    }
    return {name for name in names if name.isidentifier() and not name.startswith("__editable__")}


def _code(top: str) -> Iterator[tuple[str, Path]]:
    """Yield each file of code of a top package or module, without importing it, with its place."""
    spec = importlib.util.find_spec(top)
    if spec is None:
        return
    for location in spec.submodule_search_locations or ():
        for file in Path(location).rglob("*"):
            if file.suffix in _CODE and file.is_file():
                yield f"{top}/{file.relative_to(location).as_posix()}", file
    if spec.submodule_search_locations is None and spec.origin:
        yield Path(spec.origin).name, Path(spec.origin)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
