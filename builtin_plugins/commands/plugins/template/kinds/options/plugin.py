"""What acme brings: an option, and a policy that reads it."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl

EXAMPLE_OPTIONS = {"acme_patience": 3.0}
"""Values that the conformance suite tries beside the defaults."""


@hookimpl
def engine_options() -> list[Option]:
    """Return the option: `--acme-patience`, a key in configuration files and a keyword of `LLM`."""
    return [
        Option(
            "acme_patience",
            float,
            10.0,
            "Seconds of waiting that count as much as a thousand tokens less.",
        )
    ]


@hookimpl
def engine_scheduling_policies() -> list[Entry]:
    """Return the entry that is made with the option's value."""
    return [
        Entry(
            "acme",
            "engine_acme.policy:Acme",
            "short prompts first, and those that have waited long",
        )
    ]
