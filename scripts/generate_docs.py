"""Generates the reference pages in docs/reference, which git ignores.

Run it as `python -m scripts.generate_docs`.
"""

from __future__ import annotations

import types
import typing
from pathlib import Path

import msgspec

from builtin_plugins.commands.config.reference_page import reference_page
from core.config.fields import FieldTable
from core.plugin import Registry, load_plan, make_plan
from core.plugin.discovery import discover
from core.types import Bound, SamplingParams
from scripts.models_page import models_page
from scripts.reference.attacks import attacks_page
from scripts.reference.hooks import hooks_page
from scripts.reference.json_settings import json_settings_page
from scripts.reference.metrics import metrics_page
from scripts.reference.parsers import parsers_page
from scripts.reference.suites import suites_page
from scripts.reference.types import types_page
from scripts.vllm_page import vllm_page
from tests.core.plugin.mutants import MUTANTS, SURVIVORS
from tests.system.attacks.known_attacks import load_known_attacks
from tests.system.hostile_files.corpus import CORPUS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
SAMPLING_INTRO = """\
# Sampling parameters

Fields of `SamplingParams`, also of requests to `/v1/completions` and `/v1/chat/completions`. A
value out of range is rejected with the field's name and the limit. Limits that depend on the
model (vocabulary, context length) are checked when the request arrives.

| field | type | default | limits | meaning |
| --- | --- | --- | --- | --- |
"""


def builtins() -> Registry:
    """Return a registry of the builtin plugins."""
    return load_plan(make_plan([f"no:{ref.name}" for ref in discover() if not ref.builtin]))


def sampling_page() -> str:
    """Return the page of sampling parameters, from their annotations."""
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
    """Return a type as source text."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " | ".join(type_text(part) for part in typing.get_args(hint))
    if hint is type(None):
        return "None"
    return hint.__name__ if typing.get_origin(hint) is None else str(hint)


def default_text(field: msgspec.structs.FieldInfo) -> str:
    """Return a field's default as source text."""
    return repr(field.default_factory() if field.default is msgspec.NODEFAULT else field.default)


def limits_text(bound: Bound) -> str:
    """Return the limits of a field as text."""
    parts = []
    if bound.low is not None:
        parts.append(f"{'over' if bound.low_open else 'from'} {number_text(bound.low)}")
    if bound.high is not None:
        parts.append(f"up to {number_text(bound.high)}")
    if bound.max_items is not None:
        parts.append(f"up to {bound.max_items} items")
    return ", ".join(parts)


def number_text(value: float) -> str:
    """Return a number as text; large powers of two as powers."""
    powers = {2**63 - 1: "2^63 - 1", -(2**63): "-2^63"}
    return powers.get(int(value), f"{value:g}")


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    registry = builtins()
    table = FieldTable(registry.options())  # core options, then those of the builtins
    return {
        "attacks.md": attacks_page(load_known_attacks(), CORPUS),
        "hooks.md": hooks_page(),
        "configuration.md": reference_page(table),
        "json_settings.md": json_settings_page(),
        "metrics.md": metrics_page(),
        "parsers.md": parsers_page(registry),
        "sampling.md": sampling_page(),
        "suites.md": suites_page(MUTANTS, SURVIVORS),
        "types.md": types_page(),
        "vllm_flags.md": vllm_page(table),
        "architectures.md": models_page(),
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
