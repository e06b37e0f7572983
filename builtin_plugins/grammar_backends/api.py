"""Public API of grammar backends, with the promises of `core.api`.

The contract, the bytes of a vocabulary, and what libraries ignore in a JSON schema.
"""

from builtin_plugins.grammar_backends.contract import (
    Constraint,
    Grammar,
    GrammarBackend,
    GrammarState,
    Vocabulary,
    constraint_of,
)
from builtin_plugins.grammar_backends.json_schema import (
    ignored_keyword,
    schema_parts,
    unsupported_keyword,
)
from builtin_plugins.grammar_backends.vocabulary import read_vocabulary

__all__ = [
    "Constraint",
    "Grammar",
    "GrammarBackend",
    "GrammarState",
    "Vocabulary",
    "constraint_of",
    "ignored_keyword",
    "read_vocabulary",
    "schema_parts",
    "unsupported_keyword",
]
