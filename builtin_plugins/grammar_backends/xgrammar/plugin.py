"""A grammar backend for EBNF grammars and tags with free text."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_grammar_backends() -> list[Entry]:
    target = "builtin_plugins.grammar_backends.xgrammar.backend:XGrammar"
    summary = "all kinds; JSON schemas except for many keywords (pattern, minLength, not, ...)"
    return [Entry("xgrammar", target, summary, priority=30, requires=("xgrammar>=0.1.32",))]
