"""The command `engine plugins`: list, show, explain, check, lock and write plugins."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.commands.plugins.compatibility import incompatible_uses
from builtin_plugins.commands.plugins.scaffold import TARGETS, next_steps, write_package
from builtin_plugins.commands.plugins.status import (
    check_facts,
    explain,
    find_kind,
    platform_facts,
    plugin_statuses,
    write_lock,
)
from core.api import ConfigError
from core.api.plugins import KINDS, USES, format_fact, load_plan, make_plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from core.api import CommandContext
    from core.api.plugins import LoadedRegistry, PluginRef

LOCK_FILE: Final = "engine-plugins.lock"


class PluginsCommand:
    """Lists, shows, explains, checks, locks and writes plugins."""

    help = "List, show, explain, check, lock and write plugins."
    takes_engine_options = False
    runs_before_plugins = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the actions."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        one = actions.add_parser("list", help="every plugin and its status; imports none of them")
        _add_json(one)
        one = actions.add_parser("show", help="hooks, entries and options of one plugin")
        one.add_argument("name", help="plugin, ./file.py or pkg.module")
        _add_json(one)
        one = actions.add_parser("explain", help="every entry of a kind, and why it is used or not")
        one.add_argument("kind", help=", ".join(KINDS))
        one.add_argument(
            "--fact",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="fact to assume, such as head_size=80",
        )
        _add_json(one)
        one = actions.add_parser(
            "check", help="run the checks of one plugin and of the kinds it implements"
        )
        one.add_argument("name", help="plugin, ./file.py or pkg.module")
        one.add_argument(
            "--against",
            metavar="VERSION",
            help="run no checks; list imports of the plugin that are private or missing in this "
            "version of the engine",
        )
        _add_json(one)
        one = actions.add_parser("lock", help="write the exact set of plugins, for --plugins-lock")
        one.add_argument(
            "-o", "--output", default=LOCK_FILE, metavar="FILE", help=f"default: {LOCK_FILE}"
        )
        one = actions.add_parser(
            "new", help="write a package for a new plugin, with tests that pass"
        )
        one.add_argument("name", help="name of the plugin, such as acme")
        one.add_argument("--kind", required=True, help=", ".join(TARGETS))
        one.add_argument(
            "--architecture",
            metavar="NAME",
            help="of a model: name in its config.json; default: NameForCausalLM",
        )
        one.add_argument(
            "--from",
            dest="begins_as",
            metavar="NAME",
            help="of a model: builtin architecture to copy, such as LlamaForCausalLM",
        )
        one.add_argument(
            "--tower",
            action="store_true",
            help="of a model: with a tower and an input processor, for images",
        )
        one.add_argument("-o", "--output", metavar="DIR", help="default: ./engine-NAME")

    def run(self, context: CommandContext) -> int:
        """Run the action and return its exit status: 1 when a check failed."""
        action = getattr(self, f"_{context.args.action}")
        status: int = action(context)
        return status

    def _list(self, context: CommandContext) -> int:
        section = context.config.plugins
        rows = plugin_statuses(section.plugins, section.plugins_lock)
        if context.args.json:
            return _print_json(
                [{**_as_json(row.plugin), "status": row.status, "note": row.note} for row in rows]
            )
        _print_table(
            ("PLUGIN", "STATUS", "FROM", "MODULE"),
            ((row.plugin.name, row.status, _origin(row.plugin), row.plugin.target) for row in rows),
        )
        for note in dict.fromkeys(f"{row.plugin.name}: {row.note}" for row in rows if row.note):
            print(note)
        return 0

    def _show(self, context: CommandContext) -> int:
        """Print one plugin. Loads it alone, so that other broken plugins do not matter."""
        registry = load_plan(make_plan(["none", context.args.name]))
        ref = next(ref for ref in registry.plan.plugins if ref.named)
        contents = _contents(registry, ref)
        if context.args.json:
            return _print_json(contents)
        print(
            f"{ref.name}: {ref.origin}, module {ref.target}\nhooks: "
            f"{', '.join(contents['hooks']) or 'none'}"
        )
        for entry in contents["entries"]:
            print(f"{KINDS[entry['kind']].noun} {entry['name']}: {entry['summary']}")
            for word in ("when", "requires", "needs", "gives", "conflicts"):
                if entry[word]:
                    print(f"    {word} {entry[word]}")
        for option in contents["options"]:
            print(f"option {option['name']} (default {option['default']!r}): {option['help']}")
        return 0

    def _explain(self, context: CommandContext) -> int:
        kind = find_kind(context.args.kind).name
        given = dict(_fact(text) for text in context.args.fact)
        check_facts(context.registry, kind, given)
        facts = {} if kind == "platforms" else platform_facts(context.registry)
        facts |= given
        statuses = explain(context.registry, kind, facts)
        if context.args.json:
            rows = [{**dataclasses.asdict(v), "plugin": _as_json(v.plugin)} for v in statuses]
            return _print_json({"kind": kind, "facts": facts, "candidates": rows})
        known = ", ".join(f"{name}={format_fact(value, '+')}" for name, value in facts.items())
        print(f"{kind}, used: {USES[KINDS[kind].use]}; known facts: {known or 'none'}")
        _print_table(
            ("", "ENTRY", "PRIORITY", "PLUGIN", "WHY"),
            (
                ("*" if v.chosen else "", v.name, str(v.priority), _named(v.plugin), v.reason)
                for v in statuses
            ),
        )
        return 0

    def _check(self, context: CommandContext) -> int:
        if context.args.against:
            return self._check_against(context)
        from core.testing.conformance import check_plugin  # lazy: imports torch

        results = list(check_plugin(context.args.name))
        failed = [result for result in results if not result.passed]
        if context.args.json:
            _print_json(
                [{**dataclasses.asdict(result), "passed": result.passed} for result in results]
            )
            return 1 if failed else 0
        for result in results:
            print(f"{'ok  ' if result.passed else 'FAIL'} {result.subject}: {result.check}")
            if result.error:
                print(
                    f"     {result.error}"
                    + (f"\n     The contract: {result.sentence}" if result.sentence else "")
                )
        print(f"{len(results)} checks, {len(failed)} failed")
        return 1 if failed else 0

    def _check_against(self, context: CommandContext) -> int:
        """Print the incompatible uses; return 1 when the version lacks a public name."""
        uses = incompatible_uses(context.args.name, context.args.against)
        missing = [use for use in uses if use.public]
        if context.args.json:
            _print_json([dataclasses.asdict(use) for use in uses])
        else:
            for use in uses:
                print(f"{use.location}: {use.what}")
            print(
                f"{len(missing)} public names missing in {context.args.against}, "
                f"{len(uses) - len(missing)} private names used"
            )
        return 1 if missing else 0

    def _lock(self, context: CommandContext) -> int:
        plan = make_plan(context.config.plugins.plugins)
        Path(context.args.output).write_bytes(write_lock(plan))
        print(
            f"{context.args.output}: {len(plan.plugins)} plugins with their files, digest "
            f"{plan.digest[:16]}"
        )
        return 0

    def _new(self, context: CommandContext) -> int:
        name = context.args.name
        kind = context.args.kind
        architecture = context.args.architecture
        folder = Path(context.args.output or f"engine-{name.replace('_', '-')}")
        begins_as = context.args.begins_as
        tower = context.args.tower
        for file in write_package(name, kind, folder, architecture, begins_as, tower=tower):
            print(file)
        print(f"Next: {next_steps(name, folder)}")
        return 0


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _as_json(ref: PluginRef) -> dict[str, Any]:
    return {
        "name": ref.name,
        "distribution": ref.distribution,
        "version": ref.version,
        "module": ref.target,
        "builtin": ref.builtin,
        "sha256": ref.sha256,
    }


def _contents(registry: LoadedRegistry, ref: PluginRef) -> dict[str, Any]:
    entries = [
        {
            "kind": registered.kind,
            "name": registered.entry.name,
            "target": str(registered.entry.target),
            "summary": registered.entry.summary,
            "priority": registered.entry.priority,
            "api": registered.entry.api,
            "when": {
                name: format_fact(required) for name, required in registered.entry.when.items()
            },
            "requires": list(registered.entry.requires),
            **{
                word: sorted(getattr(registered.entry, word))
                for word in ("needs", "gives", "conflicts")
            },
        }
        for kind in KINDS
        for registered in registry.entries(kind)
        if registered.plugin == ref
    ]
    options = [
        {"name": o.name, "default": o.default, "help": o.help}
        for owner, o in registry.options()
        if owner == ref.name
    ]
    return {
        **_as_json(ref),
        "hooks": registry.hooks.implemented(ref.name),
        "entries": entries,
        "options": options,
    }


def _fact(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE. The value may be a number, true, false or a JSON list."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--fact: got {text!r}; expected NAME=VALUE, such as head_size=80.")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _named(ref: PluginRef) -> str:
    return f"{ref.name} ({ref.origin})"


def _origin(ref: PluginRef) -> str:
    return f"{'builtin' if ref.builtin else 'third party'}, {ref.origin}"


def _print_json(value: Any) -> int:
    print(
        json.dumps(
            value,
            indent=2,
            default=lambda found: sorted(found) if isinstance(found, frozenset) else str(found),
        )
    )
    return 0


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    for line in lines:
        cells = [f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)]
        print("  ".join([*cells, line[-1]]).rstrip())
