"""The command `engine doctor`: runs every check and prints the report."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from builtin_plugins.commands.doctor import machine, model, software
from builtin_plugins.commands.doctor.finding import Finding

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

Check = Callable[[], Iterable[Finding]]


class Doctor:
    """Checks machine, software, plugins and environment."""

    help = "Check machine, software, plugins and environment; recommend fixes."
    takes_engine_options = False
    examines_plugins = True
    """Whether the command runs with broken plugins."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add port, model and output format."""
        parser.add_argument(
            "--port", type=int, help="port that must be free; default: check 8000 and only warn"
        )
        parser.add_argument(
            "--model",
            help="folder or hub id of a model to check, including every value of its weights",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, context: CommandContext) -> int:
        """Print the report; return 1 when a check fails."""
        findings = examine(_checks(context, context.args))
        if context.args.json:
            found = [asdict(finding) for finding in findings]
            json.dump({"fails": _any_failed(found), "findings": found}, sys.stdout, indent=2)
            print()
            return int(_any_failed(found))
        seen = []
        for finding in findings:  # print each at once: some checks take seconds
            print(finding, flush=True)
            seen.append(asdict(finding))
        counts = Counter(found["status"] for found in seen)
        print(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed")
        return int(_any_failed(seen))


def examine(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Yield the findings of all checks; an exception in a check is a finding."""
    for subject, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - the report must be complete
            yield Finding("fail", subject, f"check failed: {type(error).__name__}: {error}")


def _checks(context: CommandContext, args: argparse.Namespace) -> Iterator[tuple[str, Check]]:
    yield "engine", software.check_installation
    yield "python", machine.check_python
    yield "platform", machine.check_platform
    yield "processor", machine.check_processor
    yield "memory", machine.check_memory
    yield "disk", machine.check_disk
    yield "limits", machine.check_limits
    yield "torch", software.check_torch
    yield "compiler", software.check_compiler
    yield "dependencies", software.check_dependencies
    yield "plugins", partial(software.check_plugins, context)
    yield "environment", software.check_environment
    yield "port", partial(machine.check_port, args.port)
    yield "leftovers", machine.check_leftovers
    if args.model:
        yield "model", partial(model.check_model, context, args.model)


def _any_failed(found: Iterable[dict[str, Any]]) -> bool:
    return any(finding["status"] == "fail" for finding in found)
