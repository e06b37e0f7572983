"""`engine config`: prints the effective configuration and the origin of each value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from builtin_plugins.commands.config.reference_page import reference_page
from core.api.config import OPTIONS, Field

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

SECRETS = ("token", "key", "password", "secret")
"""Name endings of values that are never printed."""
HIDDEN = "***"
PLUGIN = "command_config"
"""Name of this command's plugin."""


class ConfigCommand:
    """Prints the configuration that an engine with the same arguments would use."""

    help = "Print the effective configuration and where each value came from."
    takes_engine_options = True
    needs_no_selection = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the output formats."""
        parser.add_argument("model", nargs="?", help="model, as for serve")
        form = parser.add_mutually_exclusive_group()
        form.add_argument(
            "--json", action="store_true", help="as JSON: section, name, value, origin"
        )
        form.add_argument("--toml", action="store_true", help="as a configuration file")
        form.add_argument(
            "--reference", action="store_true", help="the reference page of everything, as markdown"
        )

    def run(self, context: CommandContext) -> int:
        """Print and return 0. Raises `ConfigError` for settings that a start refuses."""
        check_settings(context)
        if context.args.reference:
            print(reference_page(context.table), end="")
        elif context.args.json:
            print(json.dumps(_as_json(context), indent=2))
        elif context.args.toml:
            print("\n".join(_as_toml(context)))
        else:
            origin_of = context.provenance.origin_of
            rows = [
                (found.flag, _as_text(value), origin_of(found.name))
                for found, value in effective_values(context)
            ]
            widths = [min(40, max(len(row[i]) for row in rows)) for i in range(2)]
            for flag, value, origin in rows:
                print(f"{flag:<{widths[0]}}  {value:<{widths[1]}}  {origin}")
        return 0


def check_settings(context: CommandContext) -> None:
    """Raise `ConfigError` for settings that a start refuses, whatever the model."""
    if any(ref.name == PLUGIN for ref in context.registry.plan.plugins):  # it has the hook
        context.registry.call_hook(
            "engine_check_settings", config=context.config, registry=context.registry
        )


def effective_values(context: CommandContext) -> Iterator[tuple[Field, Any]]:
    """Yield every field with its effective value, secrets hidden."""
    for found in context.table.by_name.values():
        if found.refuse:
            continue
        if found.section == OPTIONS:
            value = context.config.options[found.name]
        else:
            value = getattr(getattr(context.config, found.section), found.name)
        secret = isinstance(value, (str, list)) and value and found.name.endswith(SECRETS)
        yield found, HIDDEN if secret else value


def _as_text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) and value else json.dumps(value)


def _as_json(context: CommandContext) -> dict[str, Any]:
    printed: dict[str, Any] = {}
    for found, value in effective_values(context):
        entry = {"value": value, "origin": context.provenance.origin_of(found.name)}
        printed.setdefault(found.group, {})[found.name] = entry
    return printed


def _as_toml(context: CommandContext) -> Iterator[str]:
    """Yield the lines of a file with the same configuration; unset values are comments."""
    group = None
    for found, value in effective_values(context):
        if found.group != group:
            group = found.group
            yield f"[{json.dumps(group) if '.' in group else group}]"
        gone = value is None or value == HIDDEN
        yield f"# {found.name} = (not set)" if gone else f"{found.name} = {toml_value(value)}"


def toml_value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        items = (
            f"{json.dumps(str(key))} = {toml_value(item)}"
            for key, item in value.items()
            if item is not None
        )
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
