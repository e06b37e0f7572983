"""Writes what is made from the code: pages of hooks, configuration, sampling parameters, parsers,
flags and architectures, and the
list of public names. `--check` compares.
"""

from __future__ import annotations

import sys
import types
import typing
from pathlib import Path

import msgspec
from models_page import models_page
from packaging.version import Version
from vllm_page import vllm_page

import core
from builtin_plugins.commands.plugins.releases import FOLDER as RELEASED
from builtin_plugins.commands.plugins.releases import minor, public_names
from core.cli.reference_page import reference_page
from core.config.fields import FieldTable
from core.plugin import Registry, load_plan, make_plan
from core.plugin.discovery import discover
from core.types import Bound, SamplingParams
from scripts.reference.hooks import hooks_page
from scripts.reference.parsers import parsers_page
from scripts.reference.suites import suites_page
from scripts.reference.types import types_page

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
sys.path.append(str(ROOT))  # for the list of wrong plugins, which belongs to the tests

from tests.plugin.mutants import MUTANTS, SURVIVORS  # noqa: E402 - behind the path to it

SAMPLING_INTRO = """\
# Sampling parameters

Fields of `SamplingParams`; requests to `/v1/completions` and `/v1/chat/completions` have them too. A value outside
its limits is refused with the field's name and the limit; limits that depend on the model (vocabulary, context
length) are checked when the request arrives.

| field | type | default | limits | meaning |
| --- | --- | --- | --- | --- |
"""


def builtins() -> Registry:
    """Return the builtins, whatever else is installed."""
    return load_plan(make_plan([f"no:{ref.name}" for ref in discover() if not ref.builtin]))


def sampling_page() -> str:
    """Return the page of request fields, from their annotations."""
    defaults = {field.name: field for field in msgspec.structs.fields(SamplingParams)}
    rows = []
    for name, hint in typing.get_type_hints(SamplingParams, include_extras=True).items():
        bound = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Bound)), None)
        if bound is not None:
            kind = type_text(typing.get_args(hint)[0]).replace("|", "\\|")
            rows.append(
                f"| `{name}` | `{kind}` | `{default_text(defaults[name])}` | {limits_text(bound)} "
                f"| {bound.doc} |\n"
            )
    return SAMPLING_INTRO + "".join(rows)


def type_text(hint: typing.Any) -> str:
    """Return a type as it is written."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " | ".join(type_text(part) for part in typing.get_args(hint))
    if hint is type(None):
        return "None"
    return hint.__name__ if typing.get_origin(hint) is None else str(hint)


def default_text(field: msgspec.structs.FieldInfo) -> str:
    """Return a field's default as it is written."""
    return repr(field.default_factory() if field.default is msgspec.NODEFAULT else field.default)


def limits_text(bound: Bound) -> str:
    """Return the limits of a field in words."""
    parts = []
    if bound.low is not None:
        parts.append(f"{'over' if bound.low_open else 'from'} {number_text(bound.low)}")
    if bound.high is not None:
        parts.append(f"up to {number_text(bound.high)}")
    if bound.max_items is not None:
        parts.append(f"at most {bound.max_items} items")
    return ", ".join(parts)


def number_text(value: float) -> str:
    """Return a limit, powers of two that nobody can read as powers."""
    powers = {2**63 - 1: "2^63 - 1", -(2**63): "-2^63"}
    return powers.get(int(value), f"{value:g}")


def main() -> int:
    registry = builtins()
    table = FieldTable(registry.options())  # the engine's own options, then those of the builtins
    pages = {
        "hooks.md": hooks_page(),
        "configuration.md": reference_page(table),
        "parsers.md": parsers_page(registry),
        "sampling.md": sampling_page(),
        "suites.md": suites_page(MUTANTS, SURVIVORS),
        "types.md": types_page(),
        "vllm_flags.md": vllm_page(table),
        "architectures.md": models_page(),
    }
    files = {FOLDER / name: text for name, text in pages.items()}
    promised = msgspec.json.format(msgspec.json.encode(public_names()), indent=1).decode() + "\n"
    files[RELEASED / f"{minor(Version(core.__version__))}.json"] = promised
    stale = [
        file
        for file, text in files.items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]
    if "--check" not in sys.argv:
        for file in stale:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(files[file], encoding="utf-8")
        return 0
    if stale:
        listed = ", ".join(str(file.relative_to(ROOT)) for file in stale)
        sys.stderr.write(f"stale generated files: {listed}; run `make docs`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
