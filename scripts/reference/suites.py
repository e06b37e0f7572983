"""The page of suites: every check of every kind and joint, from the docstrings of
`core.testing.conformance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.plugin import KINDS
from core.testing.conformance import checks, sentence, statement
from core.testing.conformance.joints import JOINTS

INTRO = """\
# Conformance suites

What `engine plugins check` and the tests of a new package run, by kind. How a suite is told what a plugin means stands on the page
[Writing a plugin](../plugins.md). Of every kind:

"""
WRONG = """\
## What the suites catch

Each suite is tested itself, by plugins that are wrong: changes to the package that `engine plugins new` writes, each of which
breaks it in one place. The suite must fail them; a test runs all of them, and the package as it is written, which must pass.

| kind | wrong plugins | caught | examples |
| --- | --- | --- | --- |
"""


def suites_page(
    mutants: Mapping[str, Sequence[tuple[str, str, str]]], survivors: Mapping[tuple[str, str], str]
) -> str:
    """Return the page as markdown; `mutants` are wrong plugins by kind, `survivors` those that are
    not caught, with reasons.
    """
    common = [check for check in checks("commands") if check.__module__.endswith(".contract")]
    parts = [INTRO, *(_line(check) for check in common)]
    for name, kind in {**KINDS, **JOINTS}.items():
        parts.append(f"\n## {kind.noun[0].upper()}{kind.noun[1:]} (`{name}`)\n\n")
        parts += [_line(check) for check in checks(name) if check not in common]
    parts.append(f"\n{WRONG}")
    for name, changes in mutants.items():
        missed = sum(kind == name for kind, _ in survivors)
        shown = ", ".join(what for what, _, _ in changes[:3])
        parts.append(f"| `{name}` | {len(changes)} | {len(changes) - missed} | {shown} |\n")
    parts += [
        f"\nNot caught: {what} (`{kind}`): {why}\n" for (kind, what), why in survivors.items()
    ]
    return "".join(parts)


def _line(check: object) -> str:
    return f"- **{statement(check)}**: {sentence(check)}\n"
