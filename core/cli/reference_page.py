"""The configuration reference page: `python -m core.cli.reference_page` prints it for the
engine's own sections.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from core.cli.field_docs import field_doc, section_docs
from core.config.fields import OPTIONS, Field, FieldTable
from core.config.values import ValueType

INTRO = """\
# Configuration reference

Every value is a flag, a key of the configuration file (TOML or YAML; flat, or in the table named in the
heading), and a keyword of `LLM`. Flags may be spelt with dashes or underscores; keys of a JSON value may be
given one by one after a dot (`--hf-overrides.rope_theta 1e6`). A flag beats the environment, which beats the
file, which beats the default.
"""


def reference_page(table: FieldTable) -> str:
    """Return the page as markdown; fields that are refused are left out."""
    docs = section_docs()
    parts = [INTRO]
    for group, fields in table.groups().items():
        shown = [f for f in fields if not f.refuse]
        if not shown:
            continue
        plugin = shown[0].section == OPTIONS
        parts.append(f"## {'Plugin ' if plugin else ''}`{group}`\n")
        if not plugin:
            parts.append(docs[f"[{group}]"] + "\n")
        parts.append("| key and flag | type | default | meaning |\n| --- | --- | --- | --- |")
        parts += [_row(found, field_doc(found, docs)) for found in shown]
        parts.append("")
    return "\n".join(parts)


def show_default(value: Any) -> str:
    """Return a default as help and docs show it."""
    return (
        "none"
        if value is None
        else value
        if isinstance(value, str) and value
        else json.dumps(value)
    )


def metavar(kind: ValueType) -> str:
    """Return what help and docs show for a value."""
    if kind.choices:
        names = [str(choice) for choice in kind.choices] + (["None"] if kind.optional else [])
        return "{" + ",".join(names) + "}"
    if kind.items is not None:
        return metavar(kind.items)
    shown = {int: "INT", float: "FLOAT", str: "TEXT"}
    return "|".join(
        [shown[s] for s in kind.scalars if s in shown] + (["JSON"] if kind.mapping else [])
    )


def is_switch(kind: ValueType) -> bool:
    """Say whether it is a plain boolean, whose flag takes no value."""
    return kind.scalars == (bool,) and not (kind.choices or kind.items or kind.mapping)


def _row(found: Field, text: str) -> str:
    kind = (
        "true or false"
        if is_switch(found.type)
        else metavar(found.type) + (" ..." if found.type.items else "")
    )
    within = found.type.within
    bounds = f" {within.least} to {within.most}" if within else ""
    cells = [
        f"`{found.name}`<br>`{found.flag}`",
        f"`{kind}`{bounds}",
        f"`{show_default(found.default)}`",
        text,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(reference_page(FieldTable()))
