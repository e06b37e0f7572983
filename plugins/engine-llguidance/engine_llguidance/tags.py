"""Structural tags as grammars of llguidance: fixed texts, tokens by id and JSON, in sequence, to
choose from, repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

_REPEATED: Final = {"star": "*", "plus": "+", "optional": "?"}


class Tags:
    """Writes one grammar. Raises `ValueError` naming what it cannot hold outputs to."""

    def __init__(self, prepare: Callable[[Any], Any]) -> None:
        """`prepare` makes a schema what the library is to hold outputs to."""
        self._prepare = prepare
        self._rules: list[str] = []

    def grammar(self, text: str) -> str:
        """Return the grammar of a structural tag."""
        tag = json.loads(text)
        if "format" not in tag:
            raise ValueError("free text between tags; use xgrammar")
        start = self._expression(tag["format"])
        return "\n".join([f"start: {start}", *self._rules])

    def _expression(self, form: Any) -> str:
        kind = form.get("type")
        if kind == "const_string":
            return json.dumps(form["value"])
        if kind == "token" and isinstance(form.get("token"), int):
            return f"<[{form['token']}]>"
        if kind == "json_schema" and form.get("style", "json") == "json":
            self._rules.append(
                f"json_{len(self._rules)}: %json {json.dumps(self._prepare(form['json_schema']))}"
            )
            return f"json_{len(self._rules) - 1}"
        if kind in ("sequence", "or"):
            parts = [self._expression(element) for element in form["elements"]]
            return f"({(' ' if kind == 'sequence' else ' | ').join(parts)})"
        if kind in _REPEATED:
            return f"({self._expression(form['content'])}){_REPEATED[kind]}"
        if (
            kind == "tag"
            and isinstance(form.get("begin"), str)
            and isinstance(form.get("end"), str)
        ):
            return f"({json.dumps(form['begin'])} {self._expression(form['content'])} {json.dumps(form['end'])})"
        raise ValueError(f"{kind!r} in a structural tag; use xgrammar")
