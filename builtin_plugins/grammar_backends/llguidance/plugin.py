"""The default grammar backend."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_grammar_backends() -> list[Entry]:
    target = "builtin_plugins.grammar_backends.llguidance.backend:LLGuidance"
    summary = "JSON schemas, regexes, choices and tags, exactly; grammars in Lark"
    return [Entry("llguidance", target, summary, priority=40, requires=("llguidance>=1.3",))]
