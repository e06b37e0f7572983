"""The command: runs every check, whatever becomes of the others, and prints the report."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from builtin_plugins.commands.doctor import machine, model, software, surroundings
from builtin_plugins.commands.doctor.finding import Finding

if TYPE_CHECKING:
    import argparse

Check = Callable[[], Iterable[Finding]]


class Doctor:
    """Reports on machine, software, plugins and surroundings."""

    help = "Examine this machine, its software, the plugins and what surrounds them; say what to do about faults."
    takes_engine_options = False
    examines_plugins = True
    """Runs where plugins are broken, too."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add port, model and format."""
        parser.add_argument(
            "--port", type=int, help="port that must be free; default: look at 8000, and only warn"
        )
        parser.add_argument(
            "--model",
            help="folder or hub id of a model to examine too, every number of its weights",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, context: Any) -> int:
        """Print the report; return 1 when something fails."""
        findings = examine(_checks(context, context.args))
        if context.args.json:
            found = [asdict(finding) for finding in findings]
            json.dump({"fails": _fails(found), "findings": found}, sys.stdout, indent=2)
            print()
            return int(_fails(found))
        seen = []
        for finding in findings:  # printed as they come: one may take seconds
            print(finding, flush=True)
            seen.append(asdict(finding))
        counts = Counter(found["status"] for found in seen)
        print(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed")
        return int(_fails(seen))


def examine(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Yield what the checks find; one that breaks is a finding itself."""
    for subject, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - a doctor that dies of what it looks for helps nobody
            yield Finding("fail", subject, f"cannot be examined: {type(error).__name__}: {error}")


def _checks(context: Any, args: argparse.Namespace) -> Iterator[tuple[str, Check]]:
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
    yield "plugins", partial(surroundings.check_plugins, context)
    yield "environment", surroundings.check_environment
    yield "port", partial(machine.check_port, args.port)
    yield "leftovers", machine.check_leftovers
    if args.model:
        yield "model", partial(model.check_model, context, args.model)


def _fails(found: Iterable[dict[str, Any]]) -> bool:
    return any(finding["status"] == "fail" for finding in found)
