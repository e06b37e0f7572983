"""Page of conformance suites: every check of every kind and extension point.

Built from the docstrings of `core.testing.conformance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.plugin import KINDS
from core.testing.conformance import checks, sentence, statement
from core.testing.conformance.extension_points import EXTENSION_POINTS

INTRO = """\
# Conformance suites

Checks that `engine plugins check` and the tests of a new package run, by kind. How a plugin gives
examples to a suite is described in [Writing a plugin](../extend/plugins.md). For every kind:

"""
MUTANTS_INTRO = """\
## What the suites catch

Each suite is tested with mutants: changes to the package of `engine plugins new` that break one
part of the contract. The suite must fail on each mutant and pass the unchanged package.

| kind | mutants | caught | examples |
| --- | --- | --- | --- |
"""


def suites_page(
    mutants: Mapping[str, Sequence[tuple[str, str, str]]], survivors: Mapping[tuple[str, str], str]
) -> str:
    """Return the page as markdown.

    `mutants` are broken plugins by kind; `survivors` are undetected ones, with reasons.
    """
    common = [check for check in checks("commands") if check.__module__.endswith(".contract")]
    parts = [INTRO, *(_line(check) for check in common)]
    for name, kind in {**KINDS, **EXTENSION_POINTS}.items():
        parts.append(f"\n## {kind.noun[0].upper()}{kind.noun[1:]} (`{name}`)\n\n")
        parts += [_line(check) for check in checks(name) if check not in common]
    parts.append(f"\n{MUTANTS_INTRO}")
    for name, changes in mutants.items():
        missed = sum(kind == name for kind, _ in survivors)
        examples = ", ".join(what for what, _, _ in changes[:3])
        parts.append(f"| `{name}` | {len(changes)} | {len(changes) - missed} | {examples} |\n")
    parts += [
        f"\nNot caught: {what} (`{kind}`): {why}\n" for (kind, what), why in survivors.items()
    ]
    return "".join(parts)


def _line(check: object) -> str:
    return f"- **{statement(check)}**: {sentence(check)}\n"
