"""Structural tags as rules of a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.grammar_backends.languages.terminals import Terminals, quote
from builtin_plugins.grammar_backends.schema_compiler.compiler import SchemaCompiler
from builtin_plugins.grammar_backends.schema_compiler.facts import Language

_REPEATED: Final = {"star": "*", "plus": "+", "optional": "?"}
_ANY: Final = r"(?s:.)*"


def regex_terminal(terminals: Terminals, text: str) -> int:
    """Return the texts that a regex matches as a whole. Raises `ValueError` if there are none."""
    language = Language(text, whole=True)
    if not language.surely_matches and language.dfa.is_empty():
        raise ValueError(f"the regex {text!r:.80} matches no text")
    if language.expr is None:
        return terminals.dfa(language.dfa, encoded=False)
    return terminals.expr(language.expr, encoded=False)


class UnsupportedTagError(ValueError):
    """A part of a structural tag is not supported; the message names it."""


class Tags:
    """Writes a structural tag into the grammar of its schemas."""

    def __init__(self, compiler: SchemaCompiler) -> None:
        self._compiler = compiler
        self._lines: list[str] = []
        self._schemas: list[str] = []

    def grammar(self, text: str) -> str:
        """Return the grammar of a structural tag. Raises `UnsupportedTagError`."""
        tag = json.loads(text)
        form = _current(tag) if "structures" in tag else tag.get("format")
        start = self._expression(form)
        return "\n".join(
            [f"start: {start}", *self._lines, *self._schemas, *self._compiler.terminals.lines]
        )

    def _expression(self, form: Any) -> str:
        kind = form.get("type") if isinstance(form, Mapping) else None
        if kind == "const_string":
            return self._literal(form["value"])
        if kind == "token" and isinstance(form.get("token"), int):
            return f"<[{form['token']}]>"
        if kind == "json_schema" and form.get("style", "json") == "json":
            return self._schema(form["json_schema"])
        if kind == "regex" and isinstance(form.get("pattern"), str):
            terminals = self._compiler.terminals
            return terminals.name(regex_terminal(terminals, form["pattern"]))
        if kind in ("sequence", "or"):
            parts = [self._expression(element) for element in form["elements"]]
            return f"({(' ' if kind == 'sequence' else ' | ').join(parts)})"
        if kind in _REPEATED:
            return f"({self._expression(form['content'])}){_REPEATED[kind]}"
        if kind == "tag" and isinstance(form.get("begin"), str):
            return self._tag(form, form["begin"])
        if kind == "triggered_tags":
            return self._triggered(form)
        raise UnsupportedTagError(f"{kind!r} in a structural tag")

    def _literal(self, text: str) -> str:
        return self._compiler.terminals.name(self._compiler.terminals.literal(text))

    def _schema(self, schema: Any) -> str:
        rule = self._compiler.add(schema)
        self._schemas += [line for line in self._compiler.lines(rule) if line not in self._schemas]
        return rule.name

    def _tag(self, form: Mapping[str, Any], begin: str) -> str:
        """Return a tag that begins with a text, which may be written already in part."""
        ends = form.get("end", "")
        if isinstance(ends, str):
            ends = [ends]
        if not all(isinstance(end, str) for end in ends):
            raise UnsupportedTagError("an end that is no text in a structural tag")
        content = self._expression(form["content"])
        end = " | ".join(map(self._literal, ends))
        return f"({self._literal(begin)} {content} ({end}))"

    def _triggered(self, form: Mapping[str, Any]) -> str:
        """Return free text in which each trigger starts a tag."""
        triggers = form.get("triggers")
        if not isinstance(triggers, list) or not all(isinstance(t, str) and t for t in triggers):
            raise UnsupportedTagError("triggers that are no texts in a structural tag")
        number = len(self._lines)
        found = "|".join(map(quote, triggers))
        calls = []
        for index, trigger in enumerate(triggers):
            tags = [tag for tag in form.get("tags", ()) if self._begins(tag, trigger)]
            self._lines.append(f"TEXT_{number}_{index}[lazy]: /{_ANY}{quote(trigger)}/")
            parts = [self._tag(tag, tag["begin"].removeprefix(trigger)) for tag in tags]
            if parts:
                calls.append(f"TEXT_{number}_{index} ({' | '.join(parts)})")
        self._lines.append(f"REST_{number}: /{_ANY}/ & ~/{_ANY}(?:{found}){_ANY}/")
        least = "+" if form.get("at_least_one") else "*"
        times = {"+": "", "*": "?"}[least] if form.get("stop_after_first") else least
        rest = "" if form.get("stop_after_first") else f" (REST_{number})?"
        if form.get("stop_after_first") and not form.get("at_least_one"):
            rest = f" | (REST_{number})?"
            times = ""
        return f"(({' | '.join(calls)}){times}{rest})"

    def _begins(self, tag: Any, trigger: str) -> bool:
        if not isinstance(tag.get("begin"), str):
            raise UnsupportedTagError("a beginning that is no text in a structural tag")
        return bool(tag["begin"].startswith(trigger))


def _current(tag: Any) -> Any:
    """Return the format of a tag in the former form, which lists `structures` and `triggers`."""
    tags = [
        {
            "begin": item["begin"],
            "content": {"type": "json_schema", "json_schema": item.get("schema", True)},
            "end": item["end"],
        }
        for item in tag["structures"]
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers", []), "tags": tags}
