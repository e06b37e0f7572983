"""The command `engine models`: model architectures, how they are served, and models on the disk.

Joins the loaded plugins with a table of tests (`scripts/survey_models.py`). Imports no torch.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.models.check import installed_types, print_check, type_states
from builtin_plugins.commands.models.on_disk import (
    StoredModel,
    hub_cache,
    models_in_cache,
    models_in_folders,
)
from builtin_plugins.commands.models.row import Row
from builtin_plugins.commands.sizes import show_bytes
from core.api import ConfigError, did_you_mean

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

TABLE: Final = Path(__file__).with_name("architectures.json")
ANY: Final = "any architecture"
"""Feature that marks an entry serving architectures without their own entry."""

PLAIN: Final = "plain weights"
"""Feature that marks a method for unquantized weights in a device-specific layout."""
NONE: Final = "none"
FLAGS: Final = {
    "images": "images",
    "sliding_window": "windows",
    "running_state": "states",
    "quantization": "quantization",
    "tensor_parallel": "tensor parallel",
    "pooling": "pooling",
}


def rows(
    entries: Iterable[Any],
    table: Mapping[str, Mapping[str, Any]] | None = None,
    methods: Iterable[Any] = (),
) -> list[Row]:
    """Return all architectures of the table and of the loaded `models` entries, by name.

    `methods` are the loaded `quant_methods` entries; all quantizable architectures support them.
    """
    table = read_table() if table is None else table
    owners = {registered.entry.name: registered for registered in entries}
    general = next((found for found in owners.values() if ANY in found.entry.gives), None)
    names = {name for name, found in owners.items() if ANY not in found.entry.gives}
    formats = tuple(
        sorted({found.entry.name for found in methods if PLAIN not in found.entry.gives})
    )
    found = [
        _row(name, owners.get(name), general, table.get(name, {}))
        for name in sorted(names | set(table))
    ]
    return [replace(row, formats=formats) if row.quantization else row for row in found]


def read_table() -> dict[str, dict[str, Any]]:
    """Return the test results by architecture."""
    found: dict[str, dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def _row(name: str, own: Any, general: Any, found: Mapping[str, Any]) -> Row:
    facts: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
    }
    tried = facts.pop("tried", "")
    reason = facts.pop("reason", "")
    types = facts.pop("model_types", ())
    if own is not None:
        known = {"images": facts.get("images")} if tried == "generic" else facts
        return Row(name, "native", types, plugin=own.plugin.name, **known)
    if tried == "native":
        return Row(name, "no", types, reason="its plugin is not loaded")
    if general is None and not reason:
        return Row(name, "no", types, reason="no generic plugin is loaded")
    if reason:
        return Row(name, "no", types, reason=reason, images=facts.get("images"))
    return Row(name, "generic", types, plugin=general.plugin.name, **facts)


class Models:
    """Lists model architectures: native, generic through transformers, or unsupported."""

    help = (
        "List the model architectures, how each is served and what it supports, or why it is not; "
        "and the models on this machine's disk."
    )
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the filter and the output format."""
        parser.add_argument("name", nargs="?", help="an architecture or a model_type; default: all")
        parser.add_argument(
            "--how",
            choices=("native", "generic", "no"),
            help="only architectures served natively, generically, or not at all",
        )
        parser.add_argument(
            "--check",
            action="store_true",
            help="list every model type of the installed transformers by how it is served; fail if "
            "one was not tried",
        )
        parser.add_argument(
            "--on-disk",
            nargs="*",
            metavar="FOLDER",
            help="list only the models in the hub's cache and in these folders: size, "
            "architecture, and how it is served",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, context: CommandContext) -> int:
        """Print the list. Raises `ConfigError` for an unknown name."""
        args = context.args
        entries = context.registry.entries
        if args.on_disk is not None:
            return _list_on_disk(context, args)
        if args.check:
            return _check(rows(entries("models")), args)
        chosen = _select(
            rows(entries("models"), methods=_methods(entries("quant_methods"))), args.name
        )
        chosen = [row for row in chosen if args.how in (None, row.how)]
        if args.json:
            json.dump([asdict(row) for row in chosen], sys.stdout, indent=2)
            print()
        elif args.name:
            print("\n\n".join(_details(row) for row in chosen))
        else:
            print("\n".join(_line(row) for row in chosen))
            if args.how is None and (stored := list(models_in_cache(hub_cache()))):
                print("\non this machine:")
                lines = _stored_lines(stored, _how_served(rows(entries("models"))))
                print("\n".join((*lines, "")))
            count = Counter(row.how for row in chosen)
            print(
                f"{count['native']} native, {count['generic']} by transformers' modules, "
                f"{count['no']} not served"
            )
        return 0


def served_architectures(context: CommandContext) -> dict[str, str]:
    """Return how each known architecture is served: "native", "generic" or "not served"."""
    return _how_served(rows(context.registry.entries("models")))


def _how_served(known: Iterable[Row]) -> dict[str, str]:
    return {row.architecture: "not served" if row.how == "no" else row.how for row in known}


def _list_on_disk(context: CommandContext, args: argparse.Namespace) -> int:
    """Print the models of the hub's cache and of the folders; return 0."""
    if args.name or args.how or args.check:
        raise ConfigError(
            "--on-disk: got a filter of architectures, too; expected none. Remove NAME, --how and "
            "--check."
        )
    folders = [Path(name).expanduser() for name in args.on_disk]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise ConfigError(f"--on-disk: got {missing[0]}; expected a folder. Correct the path.")
    cache = hub_cache()
    stored = [*models_in_cache(cache), *models_in_folders(folders)]
    how = served_architectures(context)
    if args.json:
        found = [{**asdict(each), "how": how.get(each.architecture, "")} for each in stored]
        json.dump(found, sys.stdout, indent=2)
        print()
        return 0
    for line in _stored_lines(stored, how):
        print(line)
    total = show_bytes(sum(each.num_bytes for each in stored))
    print(f"{len(stored)} models, {total}; the hub's cache is {cache} (`engine pull` fills it)")
    return 0


def _stored_lines(stored: Sequence[StoredModel], how: Mapping[str, str]) -> Iterator[str]:
    """Yield a line per model: name, size, architecture, and how it is served."""
    width = min(60, max((len(each.name) for each in stored), default=0))
    for each in stored:
        served = how.get(each.architecture, "")
        state = served if each.is_complete else f"{served}, incomplete".removeprefix(", ")
        size = show_bytes(each.num_bytes)
        yield f"{each.name:<{width}}  {size:>10}  {each.architecture:<32} {state}".rstrip()


def _check(known: Sequence[Row], args: argparse.Namespace) -> int:
    if args.name or args.how:
        raise ConfigError("--check: got a filter, too; expected none. Remove NAME and --how.")
    states = type_states(known, installed_types())
    return print_check(states, version("transformers"), as_json=args.json)


def _methods(entries: Any) -> list[Any]:
    """Return the quantization methods, without the one for unquantized checkpoints."""
    return [found for found in entries if found.entry.name != NONE]


def _select(known: Sequence[Row], name: str | None) -> list[Row]:
    found = [row for row in known if name in (None, row.architecture, *row.model_types)]
    if found:
        return found
    names = [row.architecture for row in known] + [
        kind for row in known for kind in row.model_types
    ]
    raise ConfigError(
        f"name: got {name!r}; expected an architecture or model_type"
        f"{did_you_mean(name or '', names)}"
    )


def _line(row: Row) -> str:
    what = row.reason
    if row.how != "no":
        what = ", ".join(name for field, name in FLAGS.items() if getattr(row, field))
    return f"{row.architecture:<40} {row.how:<8} {what}".rstrip()


def _details(row: Row) -> str:
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
