"""Entries of acme: an option, and a scheduling policy that reads it."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl

EXAMPLE_OPTIONS = {"acme_patience": 3.0}
"""Values tested by the conformance suite besides the defaults."""


@hookimpl
def engine_options() -> list[Option]:
    """Return the option `--acme-patience`, also a config file key and an `LLM` keyword."""
    return [
        Option(
            "acme_patience",
            float,
            10.0,
            "Waiting time in seconds that outweighs 1,000 prompt tokens.",
        )
    ]


@hookimpl
def engine_scheduling_policies() -> list[Entry]:
    """Return the entry of the policy that reads the option."""
    return [
        Entry(
            "acme",
            "engine_acme.policy:Acme",
            "short prompts first, unless others waited long",
        )
    ]
