"""Public API of grammar backends, with the promises of `core.api`.

The contract, the bytes of a vocabulary, and what libraries ignore in a JSON schema.
"""

from builtin_plugins.grammar_backends.contract import (
    Grammar,
    GrammarBackend,
    GrammarState,
    Vocabulary,
)
from builtin_plugins.grammar_backends.json_schema import (
    ignored_keyword,
    schema_parts,
    unsupported_keyword,
)
from builtin_plugins.grammar_backends.vocabulary import read_vocabulary

__all__ = [
    "Grammar",
    "GrammarBackend",
    "GrammarState",
    "Vocabulary",
    "ignored_keyword",
    "read_vocabulary",
    "schema_parts",
    "unsupported_keyword",
]
