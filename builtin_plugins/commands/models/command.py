"""The command: prints the architectures, or as JSON; one that is named, with all that is known of
it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.models.table import Row, rows
from core.api import ConfigError, did_you_mean

if TYPE_CHECKING:
    import argparse

NONE: Final = "none"
FLAGS: Final = {
    "sliding_window": "windows",
    "running_state": "states",
    "quantization": "quantization",
    "tensor_parallel": "tensor parallel",
    "pooling": "pooling",
}


class Models:
    """Lists every architecture: served by a plugin of its own, by transformers' modules, or not,
    and why.
    """

    help = (
        "List the model architectures: how each is served and what it supports, or why it is not."
    )
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the filter and the output format."""
        parser.add_argument("name", nargs="?", help="an architecture or a model_type; default: all")
        parser.add_argument(
            "--how",
            choices=("native", "generic", "no"),
            help="only those that are served so, or not",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, context: Any) -> int:
        """Print the list. Raises `ConfigError` for a name that is not on it."""
        args = context.args
        entries = context.registry.entries
        chosen = _chosen(
            rows(entries("models"), methods=_methods(entries("quant_methods"))), args.name
        )
        chosen = [row for row in chosen if args.how in (None, row.how)]
        if args.json:
            json.dump([asdict(row) for row in chosen], sys.stdout, indent=2)
            print()
        elif args.name:
            print("\n\n".join(_in_full(row) for row in chosen))
        else:
            print("\n".join(_line(row) for row in chosen))
            count = Counter(row.how for row in chosen)
            print(
                f"{count['native']} native, {count['generic']} by transformers' modules, "
                f"{count['no']} not served"
            )
        return 0


def _methods(entries: Any) -> list[Any]:
    """Return the quantization methods, without that of checkpoints that have none."""
    return [found for found in entries if found.entry.name != NONE]


def _chosen(known: Sequence[Row], name: str | None) -> list[Row]:
    found = [row for row in known if name in (None, row.architecture, *row.model_types)]
    if found:
        return found
    names = [row.architecture for row in known] + [
        kind for row in known for kind in row.model_types
    ]
    raise ConfigError(f"no architecture or model_type {name!r}{did_you_mean(name or '', names)}")


def _line(row: Row) -> str:
    what = (
        row.reason
        if row.how == "no"
        else ", ".join(name for field, name in FLAGS.items() if getattr(row, field))
    )
    return f"{row.architecture:<40} {row.how:<8} {what}".rstrip()


def _in_full(row: Row) -> str:
    lines = [
        row.architecture,
        f"  served           {row.how}" + (f", by {row.plugin}" if row.plugin else ""),
    ]
    if row.reason:
        lines.append(f"  why not          {row.reason}")
    if row.model_types:
        lines.append(f"  model_type       {', '.join(row.model_types)}")
    for field, name in FLAGS.items():
        value = getattr(row, field)
        if value is not None:
            lines.append(f"  {name:<16} {'yes' if value else 'no'}")
    if row.formats:
        lines.append(f"  formats          {', '.join(row.formats)}")
    if row.lora_targets:
        lines.append(f"  linear layers    {', '.join(row.lora_targets)}")
    return "\n".join(lines)
