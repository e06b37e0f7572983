"""The configuration reference page.

`python -m builtin_plugins.commands.config.reference_page` prints the sections.
"""

from __future__ import annotations

import sys

from core.api.config import (
    OPTIONS,
    Field,
    FieldTable,
    field_doc,
    is_switch,
    metavar,
    section_docs,
    show_default,
)

INTRO = """\
# Configuration reference

Every value is a flag, a key of the configuration file (TOML or YAML; flat, or in the table named in
the heading), and a keyword of `LLM`. Flags may be spelt with dashes or underscores; keys of a JSON
value may be given one by one after a dot (`--hf-overrides.rope_theta 1e6`). A flag beats the
environment, which beats the file, which beats the default.
"""


def reference_page(table: FieldTable) -> str:
    """Return the page as markdown, without unsupported options."""
    docs = section_docs()
    parts = [INTRO]
    for group, fields in table.groups().items():
        supported = [f for f in fields if not f.refuse]
        if not supported:
            continue
        plugin = supported[0].section == OPTIONS
        parts.append(f"## {'Plugin ' if plugin else ''}`{group}`\n")
        if not plugin:
            parts.append(docs[f"[{group}]"] + "\n")
        parts.append("| key and flag | type | default | meaning |\n| --- | --- | --- | --- |")
        parts += [_row(found, field_doc(found, docs)) for found in supported]
        parts.append("")
    return "\n".join(parts)


def _row(found: Field, text: str) -> str:
    if is_switch(found.type):
        kind = "true or false"
    else:
        kind = metavar(found.type) + (" ..." if found.type.items else "")
    within = found.type.within
    bounds = f" {within.low} to {within.high}" if within else ""
    cells = [
        f"`{found.name}`<br>`{found.flag}`",
        f"`{kind}`{bounds}",
        f"`{show_default(found.default)}`",
        text,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(reference_page(FieldTable()))
