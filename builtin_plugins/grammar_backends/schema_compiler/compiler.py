"""Compiles a JSON schema to a grammar in llguidance's Lark dialect."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from builtin_plugins.grammar_backends.languages.dfa import TooComplexError
from builtin_plugins.grammar_backends.languages.regex_parser import RegexError
from builtin_plugins.grammar_backends.languages.terminals import Terminals, TooLargeError
from builtin_plugins.grammar_backends.schema_compiler.alternatives import Alternatives
from builtin_plugins.grammar_backends.schema_compiler.array_rules import ArrayRules
from builtin_plugins.grammar_backends.schema_compiler.document import (
    Document,
    TooManyAlternativesError,
    UnsupportedSchemaError,
)
from builtin_plugins.grammar_backends.schema_compiler.facts import Goal
from builtin_plugins.grammar_backends.schema_compiler.keywords import TYPES
from builtin_plugins.grammar_backends.schema_compiler.layout import FLEXIBLE, Layout
from builtin_plugins.grammar_backends.schema_compiler.object_rules import ObjectRules
from builtin_plugins.grammar_backends.schema_compiler.rules import Rule, Rules, TooManyRulesError
from builtin_plugins.grammar_backends.schema_compiler.shapes import Shapes
from builtin_plugins.grammar_backends.schema_compiler.value_rules import ValueRules


class SchemaCompiler:
    """Writes the rules of schemas into one grammar."""

    def __init__(self, layout: Layout, *, closes: bool, max_cpu_s: float = math.inf) -> None:
        """`closes`: objects have only the properties that their schemas name or describe.

        `max_cpu_s`: CPU time of this thread for each schema.
        """
        self.terminals = Terminals()
        self.rules = Rules()
        self._layout = layout
        self._closes = closes
        self._max_cpu_s = max_cpu_s

    def add(self, schema: Any) -> Rule:
        """Add a schema and return its rule.

        Raises `UnsupportedSchemaError`, and `CompileTimeError` after about the CPU time: one
        automaton may exceed it by two seconds.
        """
        end_s = time.thread_time() + self._max_cpu_s
        try:
            document = Document(schema)
            try:
                return self._added(Alternatives(document, end_s), schema)
            except TooManyAlternativesError:
                return self._added(Alternatives(document, end_s, is_disjoint=True), schema)
        except (RegexError, TooComplexError) as error:
            raise UnsupportedSchemaError("pattern", str(error)) from error
        except (TooManyRulesError, RecursionError) as error:
            raise UnsupportedSchemaError("schema", "is too large") from error
        except UnsupportedSchemaError:
            raise
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UnsupportedSchemaError("schema", f"is malformed: {error}") from error

    def _added(self, known: Alternatives, schema: Any) -> Rule:
        values = ValueRules(self.rules, self.terminals, known, self._layout)
        return _Writer(values, closes=self._closes).value(known.goal(schema))

    def lines(self, root: Rule) -> list[str]:
        """Return the rules of a schema. Raises `UnsupportedSchemaError` if it allows nothing."""
        lines = self.rules.lines(root)
        if not lines:
            raise UnsupportedSchemaError("schema", "allows no value")
        return lines

    def grammar(self, root: Rule) -> str:
        """Return the grammar. Raises `UnsupportedSchemaError` if it allows nothing."""
        return "\n".join([f"start: {root.name}", *self.lines(root), *self.terminals.lines])


def compile_schema(
    schema: Any, layout: Layout = FLEXIBLE, *, closes: bool = True, max_cpu_s: float = math.inf
) -> str:
    """Return the grammar of a schema's valid texts.

    Raises `UnsupportedSchemaError`, and `CompileTimeError` beyond the CPU time.
    """
    compiler = SchemaCompiler(layout, closes=closes, max_cpu_s=max_cpu_s)
    return compiler.grammar(compiler.add(schema))


class _Writer:
    """Writes the rules of one document."""

    def __init__(self, values: ValueRules, *, closes: bool) -> None:
        self._values = values
        self._known = values.known
        self._shapes = Shapes(values.known, closes=closes)
        self._arrays = ArrayRules(values)

    def value(self, goal: Goal) -> Rule:
        """Return the rule of a goal's values, with all rules that it uses."""
        rule = self._values.rule(goal)
        while self._values.pending:
            self._known.check_time()
            part, part_rule = self._values.pending.pop()
            try:
                self._write(part, part_rule)
            except UnsupportedSchemaError as error:
                path = error.path or self._known.path(part, error.keyword)
                raise type(error)(error.keyword, error.why, path) from error
            except (RegexError, TooComplexError, TooLargeError) as error:
                path = self._known.path(part, "pattern")
                why = str(error) or "is too complex"
                raise UnsupportedSchemaError("pattern", why, path) from error
        return rule

    def _write(self, goal: Goal, rule: Rule) -> None:
        rules = self._values.rules
        scalars = self._values.scalars
        facts = {kind: self._known.of(goal, kind) for kind in TYPES}
        for part in (*facts["null"], *facts["boolean"]):
            for value in sorted(part.values, key=str):
                rules.add(rule, scalars.literal(json.dumps(value)))
        numbers = scalars.numbers(facts["number"])
        if numbers is not None:
            rules.add(rule, numbers)
        for strings in facts["string"]:
            for symbol in scalars.strings(strings):
                rules.add(rule, symbol)
        for arrays in facts["array"]:
            rules.add(rule, self._values.marks["["], self._arrays.after_bracket(arrays))
        for objects in facts["object"]:
            for shape in self._shapes.of(objects):
                rules.add(rule, self._values.marks["{"], ObjectRules(self._values, shape).start())
