"""Public API of grammar backends, with the promises of `core.api`.

The contract, the bytes of a vocabulary, which schemas can be held exactly, and what libraries
ignore in a schema.
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
from builtin_plugins.grammar_backends.schema_compiler.document import (
    UncheckedError,
    UnsupportedSchemaError,
)
from builtin_plugins.grammar_backends.schema_compiler.enforceable import (
    BudgetError,
    CompileBudget,
    broken_keywords,
    check_schema,
    enforceable,
)
from builtin_plugins.grammar_backends.vocabulary import read_vocabulary

__all__ = [
    "BudgetError",
    "CompileBudget",
    "Constraint",
    "Grammar",
    "GrammarBackend",
    "GrammarState",
    "UncheckedError",
    "UnsupportedSchemaError",
    "Vocabulary",
    "broken_keywords",
    "check_schema",
    "constraint_of",
    "enforceable",
    "ignored_keyword",
    "read_vocabulary",
    "schema_parts",
    "unsupported_keyword",
]
