"""Writes signatures of a released library as a stub, from its wheel or source archive.

    python scripts/read_signatures.py ARCHIVE MODULE NAME [NAME ...]

MODULE is a path in the archive, such as flashinfer/prefill.py; NAME is a function, or a method as
Class.method. The library is not imported, so none of its requirements are needed.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tarfile
import zipfile
from pathlib import Path


def read_module(archive: Path, module: str) -> str:
    """Return the source of a module of a wheel or source archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(module).decode()
    with tarfile.open(archive) as source:
        (member,) = (each for each in source if each.name.partition("/")[2] == module)
        file = source.extractfile(member)
        if file is None:
            raise SystemExit(f"{module}: got a folder; expected a module of {archive.name}.")
        return file.read().decode()


def stub_of(source: str, names: list[str]) -> str:
    """Return the signatures of functions and methods; of overloads the implementation's."""
    tree = ast.parse(source)
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = signature(node)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    found[f"{node.name}.{method.name}"] = signature(method)
    lines: list[str] = []
    parent = ""
    for name in names:
        owner = name.rpartition(".")[0]
        if owner and owner != parent:
            lines.append(f"class {owner}:")
        lines.append(f"    {found[name]}" if owner else found[name])
        parent = owner
    return "\n".join(lines)


def signature(function: ast.FunctionDef) -> str:
    """Return a function without its annotations and body."""
    arguments = function.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        each.annotation = None
    return f"def {function.name}({ast.unparse(arguments)}): ..."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("module")
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    title = f'"""Signatures of {given.archive.name}, by `scripts/read_signatures.py`."""'
    stub = stub_of(read_module(given.archive, given.module), given.names)
    sys.stdout.write(f"{title}\n\n{stub}\n")


if __name__ == "__main__":
    main()
