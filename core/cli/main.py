"""`engine`: finds the command, loads plugins, builds the configuration, runs.

Parses in two stages, because plugins contribute commands and flags: `core.cli.startup` reads the
flags that select plugins; the second stage parses everything. Imports no torch.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import core
from core.cli.context import CommandContext
from core.cli.flags import FlagParser, add_flags, format_help, parse_flags
from core.cli.startup import CONFIG, STARTUP, Startup, read_startup
from core.config.build import (
    CONFIG_FILE,
    Layer,
    Setting,
    assemble,
    convert_setting,
    layer_from_environment,
    layer_from_file,
    read_environment,
)
from core.config.fields import FieldTable
from core.config.files import ConfigFile, read_config_file
from core.errors import ConfigError, EngineError, PluginError, did_you_mean
from core.logs import setup_logging
from core.plugin import PluginPlan, load_named, load_plan, make_plan
from core.plugin.discovery import discover

if TYPE_CHECKING:
    from core.contracts.serving import Command
    from core.plugin import Registry

USAGE: Final = "engine [--plugins NAME] [--plugins-lock FILE] [--config FILE] [--debug] COMMAND ..."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its status: 2 for a wrong setting, 1 for other errors."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except EngineError as error:
        return _report(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _exit_on_closed_stdout()
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 0


def refuse_foreign_core(path: Sequence[str], own: Path) -> None:
    """Raise `ConfigError` when a package `core` that is not `own` comes first on the module path.

    Other processes of the engine import by the same path, and would get the wrong one.
    """
    for entry in path:
        folder = (Path(entry) if entry else Path.cwd()) / "core"
        if folder.resolve() == own:
            return
        for found in (folder / "__init__.py", folder.with_suffix(".py")):
            if found.is_file():
                raise ConfigError(
                    f"{found} shadows the engine's own package `core` ({own}). Rename it, start "
                    "from another folder, or take its folder out of PYTHONPATH."
                )


def _report(error: EngineError) -> int:
    """Print an error as one block and return the exit status."""
    if isinstance(error.__cause__, BrokenPipeError):
        return _exit_on_closed_stdout()
    hint = ""
    if logging.getLogger("core").isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)
    elif isinstance(error, PluginError) and error.__cause__ is not None:
        hint = " (--debug shows the traceback.)"
    print(f"engine: error: {error}{hint}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1


def _exit_on_closed_stdout() -> int:
    """Redirect stdout to the null device and return the exit status.

    Its reader (head, less) has closed the pipe; the interpreter's last flush would fail.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _run(argv: list[str]) -> int:
    refuse_foreign_core(sys.path, Path(core.__file__).resolve().parent)
    startup = read_startup(argv)
    if startup.version:
        print(f"engine {core.__version__}")
        return 0
    environment = read_environment()
    path = startup.last(CONFIG) or environment.get(CONFIG_FILE)
    file = read_config_file(path) if path else None
    context = _early_context(startup, environment, file)
    logs = context.config.observability
    setup_logging(logs.log_level, log_format=logs.log_format)
    if startup.command is None or startup.wants_help:
        return _print_overview(context)
    if (before := _builtin_command(startup.command, "runs_before_plugins")) is not None:
        return _run_plain(before, startup, context)
    try:
        registry = context.registry
        setup_logging(logs.log_level, _packages(registry.plan), log_format=logs.log_format)
        command, blame = _find_command(startup.command, registry)
        table = FieldTable(registry.options())
    except EngineError as error:
        examiner = _load_examiner(startup.command, context)
        if examiner is not None:
            return _run_plain(examiner, startup, context)
        unknown = context.loaded is not None and startup.command not in _commands(context.loaded)
        if unknown or _help_topic(startup.rest) is None:
            raise
        print(f"usage: engine {startup.command} [options]\n\nThe options are missing: {error}")
        return 0
    with blame:
        while (subcommands := getattr(command, "subcommands", None)) is not None:
            name = startup.rest.pop(0) if startup.rest else ""
            if name not in subcommands:
                return _print_subcommands(startup.command, subcommands, name)
            command = subcommands[name]()
            startup.command = f"{startup.command} {name}"
        if not command.takes_engine_options:
            return _run_plain(command, startup, context)
        return _run_configured(command, startup, context, table, environment, file)


def _early_context(
    startup: Startup, environment: Mapping[str, str], file: ConfigFile | None
) -> CommandContext:
    """Return a context with only the settings of plugins and logging."""
    table = FieldTable()
    layer: dict[str, Setting] = {}
    for name in sorted(STARTUP - {CONFIG}):
        field = table.by_name[name]
        found = file.peek(field) if file is not None else None
        if found is None or found[0] is None:
            continue
        raw, location = found
        layer[name] = convert_setting(field, raw, f"file {location}", f"{location}: {name}")
    config, provenance = assemble(
        table, [layer, layer_from_environment(table, environment), _startup_layer(startup, table)]
    )
    return CommandContext(argparse.Namespace(), config, provenance, table)


def _startup_layer(startup: Startup, table: FieldTable) -> Layer:
    """Return the layer of start-up flags."""
    layer: dict[str, Setting] = {}
    for name, values in startup.given.items():
        if name == CONFIG:
            continue
        field = table.by_name[name]
        raw = values if field.type.items else values[-1]
        layer[name] = convert_setting(field, raw, f"flag {field.flag}", field.flag)
    return layer


def _run_plain(command: Command, startup: Startup, context: CommandContext) -> int:
    """Run a command that takes no engine options."""
    parser = FlagParser(prog=f"engine {startup.command}", description=command.help)
    command.add_arguments(parser)
    try:
        context.args = parser.parse_all(startup.rest)
    except SystemExit:  # argparse has printed the help
        return 0
    return command.run(context)


def _run_configured(
    command: Command,
    startup: Startup,
    context: CommandContext,
    table: FieldTable,
    environment: Mapping[str, str],
    file: ConfigFile | None,
) -> int:
    """Run a command with the full configuration."""
    parser = FlagParser(prog=f"engine {startup.command}", description=command.help, add_help=False)
    command.add_arguments(parser)
    topic = _help_topic(startup.rest)
    if topic is not None:
        print(format_help(parser, table, topic), end="")
        return 0
    add_flags(parser, table)
    args, flags = parse_flags(parser, table, startup.rest)
    layers: list[Layer] = [] if file is None else [layer_from_file(table, file)]
    layers += [layer_from_environment(table, environment), _startup_layer(startup, table), flags]
    model = getattr(args, "model", None)
    if model is not None:
        if "model" in flags and flags["model"].value != model:
            raise ConfigError(
                f"two models: the argument {model!r} and --model {flags['model'].value!r}; give "
                "one."
            )
        setting = convert_setting(table.by_name["model"], model, "argument MODEL", "MODEL")
        layers.append({"model": setting})
    config, provenance = assemble(table, layers)
    config, registry = load_named(config, context.registry)
    observability = config.observability
    setup_logging(
        observability.log_level, _packages(registry.plan), log_format=observability.log_format
    )
    return command.run(CommandContext(args, config, provenance, table, registry))


def _print_subcommands(command: str, subcommands: Mapping[str, type[Command]], token: str) -> int:
    """Print the subcommands of a command. Raises `ConfigError` if the token is not a help flag."""
    if _help_topic([token]) is None:
        problem = f"unknown subcommand {token!r}" if token else "a subcommand is missing"
        hint = did_you_mean(token, subcommands)
        raise ConfigError(f"engine {command}: {problem}; there are: {', '.join(subcommands)}{hint}")
    print(f"usage: engine {command} SUBCOMMAND ...\n\nsubcommands:")
    for name, subcommand in subcommands.items():
        print(f"  {name:<12} {subcommand.help}")
    print(f"\n`engine {command} SUBCOMMAND --help` shows a subcommand's options.")
    return 0


def _find_command(name: str, registry: Registry) -> tuple[Command, AbstractContextManager[object]]:
    """Return a command, and the context that attributes errors to its plugin."""
    known = _commands(registry)
    if name not in known and (builtin := _builtin_command(name, "needs_no_selection")):
        return builtin, nullcontext()
    if name not in known and (hint := did_you_mean(name, known)):
        raise ConfigError(f"unknown command {name!r}{hint}")
    registered = registry.choose("commands", name)
    blame = registry.blame(registered)
    with blame:
        command: Command = registry.load(registered)()
    return command, blame


def _commands(registry: Registry) -> list[str]:
    return [registered.entry.name for registered in registry.entries("commands")]


def _builtin_command(name: str, attribute: str) -> Command | None:
    """Return the builtin command of this name, selected or not, if it has a true attribute."""
    refs = [ref for ref in discover() if ref.builtin and ref.name == f"command_{name}"]
    with suppress(EngineError):
        registry = load_plan(PluginPlan(plugins=tuple(refs)))
        for registered in registry.entries("commands"):
            target = registry.load(registered)
            if getattr(target, attribute, False):
                command: Command = target()
                return command
    return None


def _load_examiner(name: str, context: CommandContext) -> Command | None:
    """Return the command of this name if it examines plugins.

    It runs even if other plugins are broken.
    """
    with suppress(EngineError):
        for ref in context.plan.plugins:
            with suppress(PluginError):
                alone = load_plan(PluginPlan(plugins=(ref,)))
                for registered in alone.entries("commands"):
                    if registered.entry.name == name:
                        command: Command = alone.load(registered)()
                        return command if getattr(command, "examines_plugins", False) else None
    return None


def _packages(plan: PluginPlan) -> set[str]:
    """Return the top-level packages of the plugins: the names of their loggers."""
    return {
        f"engine_local_{ref.name}" if ref.is_file else ref.target.partition(".")[0]
        for ref in plan.plugins
    }


def _help_topic(argv: Sequence[str]) -> str | None:
    """Return the topic of `--help=TOPIC`: "" for everything, None without a help flag."""
    for token in argv:
        if token == "--":
            break
        if token in ("--help", "-h") or token.startswith("--help="):
            return token.partition("=")[2]
    return None


def _print_overview(context: CommandContext) -> int:
    """Print the commands. An error of a plugin is appended to the list."""
    rows: dict[str, str] = {}
    problem = ""
    try:
        registry = load_plan(
            make_plan(context.config.plugins.plugins, context.config.plugins.plugins_lock)
        )
        rows = {
            registered.entry.name: registered.entry.summary
            for registered in registry.entries("commands")
        }
    except EngineError as error:
        problem = f"\nCommands of plugins are missing here, because {error}\n"
    print(f"usage: {USAGE}\n\ncommands:")
    for name in sorted(rows):
        print(f"  {name:<12} {rows[name]}")
    print(
        f"{problem}\n`engine COMMAND --help` shows a command's options, `engine --version` the "
        "version."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
