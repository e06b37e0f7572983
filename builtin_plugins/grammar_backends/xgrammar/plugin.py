"""The default grammar backend."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_grammar_backends() -> list[Entry]:
    target = "builtin_plugins.grammar_backends.xgrammar.backend:XGrammar"
    summary = (
        "all constraints; JSON schemas except for some keywords (multipleOf, not, contains ...)"
    )
    return [Entry("xgrammar", target, summary, priority=30, requires=("xgrammar>=0.1.32",))]
