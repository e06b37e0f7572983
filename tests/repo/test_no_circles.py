"""No two files need each other, whatever an import is for, and no file names one of a
higher floor.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRONT_DOOR = "core"
"""It lists all public names; its importers need only the version."""


def modules() -> dict[str, Path]:
    """Return the files of kernel and builtins by the names of their modules."""
    files = (file for top in ("core", "builtin_plugins") for file in (ROOT / top).rglob("*.py"))
    named = {
        file.relative_to(ROOT).with_suffix("").parts: file
        for file in files
        if "template" not in file.parts
    }
    return {".".join(parts).removesuffix(".__init__"): file for parts, file in named.items()}


def imported(module: str, file: Path) -> Iterator[tuple[str, str | None]]:
    """Yield (module, name) for every import of a file, in functions and for annotations as well."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((base, alias.name) for alias in node.names)


@cache
def graph() -> dict[str, set[str]]:
    """Return which modules each module imports."""
    known = modules()
    found: dict[str, set[str]] = {}
    for module, file in known.items():
        names = {
            f"{base}.{name}" if f"{base}.{name}" in known else base
            for base, name in imported(module, file)
        }
        found[module] = (names & known.keys()) - {module} if module != FRONT_DOOR else set()
    return found


def circle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules of one circle, the first of them also at the end; nothing where there is
    none.
    """
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def floors() -> dict[str, int]:
    """Return on which floor each room of the kernel is, the ground being 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = (layer.replace("|", ":").split(":") for layer in reversed(layers))
    return {room.strip(): floor for floor, listed in enumerate(rooms) for room in listed}


def test_circles_are_found() -> None:
    assert circle({"a": ["b"], "b": ["c"], "c": []}) == []
    assert set(circle({"a": ["b"], "b": ["c"], "c": ["b"]})) == {"b", "c"}


def test_no_files_import_each_other() -> None:
    found = circle(graph())
    assert not found, "these files import each other: " + " -> ".join(found)


def test_every_room_has_a_floor() -> None:
    rooms = {module.split(".")[1] for module in modules() if module.startswith("core.")}
    assert rooms == floors().keys()


def test_no_file_names_one_of_a_higher_floor() -> None:
    floor_of = floors()

    def floor(module: str) -> int:
        return floor_of[module.split(".")[1]]

    kernel = {m: ds for m, ds in graph().items() if m.startswith("core.")}
    upward = [
        f"{m} -> {d}"
        for m, ds in kernel.items()
        for d in ds
        if d != FRONT_DOOR and floor(d) > floor(m)
    ]
    assert not upward, f"imports of a higher floor: {upward}"
