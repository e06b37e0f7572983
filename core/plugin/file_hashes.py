"""Hashes of the code files of a distribution's packages, wherever they are
installed.

The installer's RECORD is not enough: files may be edited later, and an editable install
lists none of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from importlib_metadata import PackageNotFoundError, distribution

Files = Mapping[str, Mapping[str, str]]
"""SHA-256 of each file by distribution and by path, relative to the top
package's parent.
"""
_CODE: Final = frozenset({".py", ".so", ".pyd", ".dylib", ".dll"})
_MAX_NAMED: Final = 5


def files_of(name: str, targets: Iterable[str]) -> dict[str, str]:
    """Return the hashes of all code files in the packages of a distribution.

    Its packages are those of the targets and those in its metadata.
    """
    tops = {target.partition(".")[0] for target in targets} | _tops(name)
    return dict(sorted((path, _sha256(file)) for top in tops for path, file in _code(top)))


def changed_files(locked: Files) -> list[str]:
    """Return a sentence naming the files for each distribution that differs
    from the lock.
    """
    found = []
    for name, before in locked.items():
        now = files_of(name, (path.partition("/")[0].removesuffix(".py") for path in before))
        edited = [path for path, sha256 in before.items() if now.get(path, sha256) != sha256]
        changes = [f"{path} is edited" for path in edited]
        changes += [f"{path} is missing" for path in before if path not in now]
        changes += [f"{path} is new" for path in now if path not in before]
        if changes:
            named = ", ".join(changes[:_MAX_NAMED])
            num_more = len(changes) - _MAX_NAMED
            more = f" and {num_more} more" if num_more > 0 else ""
            found.append(f"of {_with_version(name)}, {named}{more}")
    return found


def _with_version(name: str) -> str:
    try:
        return f"{name} {distribution(name).version}"
    except PackageNotFoundError:
        return name


def _tops(name: str) -> set[str]:
    """Return the top packages and modules in a distribution's metadata; empty
    if not installed.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return set()
    names = {*(found.read_text("top_level.txt") or "").split()}
    for file in found.files or ():
        if str(file).endswith(".py") and ".." not in file.parts:
            names.add(file.parts[0].removesuffix(".py"))
    return {name for name in names if name.isidentifier() and not name.startswith("__editable__")}


def _code(top: str) -> Iterator[tuple[str, Path]]:
    """Yield path and file of each code file of a top package or module,
    without importing it.
    """
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
