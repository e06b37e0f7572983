"""The rules of goals: one for each set of schemas that a value must hold."""

from __future__ import annotations

from builtin_plugins.grammar_backends.languages.terminals import Terminals
from builtin_plugins.grammar_backends.schema_compiler.alternatives import Alternatives
from builtin_plugins.grammar_backends.schema_compiler.facts import Goal
from builtin_plugins.grammar_backends.schema_compiler.layout import Layout
from builtin_plugins.grammar_backends.schema_compiler.rules import Rule, Rules
from builtin_plugins.grammar_backends.schema_compiler.scalar_terminals import ScalarTerminals


class ValueRules:
    """Names the rules of one document's goals; they are written later, one by one."""

    def __init__(
        self, rules: Rules, terminals: Terminals, known: Alternatives, layout: Layout
    ) -> None:
        self.rules = rules
        self.known = known
        self.scalars = ScalarTerminals(terminals, layout)
        around = layout.around
        self.marks = {
            "[": self.scalars.regex(rf"\[{around}"),
            "]": self.scalars.regex(rf"{around}\]"),
            "{": self.scalars.regex(rf"\{{{around}"),
            "}": self.scalars.regex(rf"{around}\}}"),
            ",": self.scalars.regex(f"{around},{layout.after}"),
        }
        """Terminals of the structural characters, with the whitespace around them."""
        self.pending: list[tuple[Goal, Rule]] = []
        """Goals without alternatives of their rules yet."""
        self._goals: dict[Goal, Rule] = {}

    def rule(self, goal: Goal) -> Rule:
        """Return the rule of a goal's values."""
        if goal not in self._goals:
            self._goals[goal] = self.rules.new()
            self.pending.append((goal, self._goals[goal]))
        return self._goals[goal]
