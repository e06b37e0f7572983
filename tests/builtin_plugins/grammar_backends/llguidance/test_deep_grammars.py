"""Long chains of rules, into which the library recurses, are read or refused: never a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import pytest

pytest.importorskip("llguidance")

_PROGRAM: Final = """
import json, sys
from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from builtin_plugins.grammar_backends.llguidance.backend import LLGuidance
from core.api import InvalidRequest

vocabulary = Vocabulary((*(bytes((i,)) for i in range(256)), b""), (256,))
for kind, text in json.load(sys.stdin):
    try:
        LLGuidance.check(Constraint(kind, text))
        LLGuidance(vocabulary).compile(Constraint(kind, text))
    except InvalidRequest as error:
        print(error)
    else:
        print("held")
"""


def chain_of_schemas(length: int) -> dict[str, Any]:
    links = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)}
    return {"$defs": {**links, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def chain_of_rules(length: int, name: str) -> str:
    links = [f'{name}{i}: "a" {name}{i + 1}' for i in range(length)]
    return "\n".join([f"start: {name}0", *links, f'{name}{length}: "b"'])


def test_long_chains_are_held_or_refused() -> None:
    """In another process: at a fault of the stack it ends without an exception."""
    properties = {f"p{i}": {"type": "integer"} for i in range(3_000)}
    many = " | ".join(f'"{i}" "b"' for i in range(33_000))
    cases = {
        "properties": ("json", json.dumps({"type": "object", "properties": properties})),
        "too many symbols": ("grammar", f"start: {many}"),
        "schemas": ("grammar", f"start: %json {json.dumps(chain_of_schemas(5_000))}"),
        "rules": ("grammar", chain_of_rules(6_000, "rule")),
        "too many rules": ("grammar", chain_of_rules(100_001, "rule")),
        "terminals": ("grammar", chain_of_rules(6_000, "TERMINAL")),
    }
    made = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps([*cases.values()]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    found = dict(zip(cases, made.stdout.splitlines(), strict=True))
    assert found.pop("too many symbols").endswith("cannot be held: is too large.")
    assert found.pop("too many rules").endswith("cannot be held: has more than 100000 rules.")
    assert found == dict.fromkeys(found, "held")
