"""Grammar backends, which constrain outputs to a schema, a regex or a
grammar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from core.api.sampling import ConstraintKind, StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint for a grammar backend; hashable, the key of the grammar
    cache.
    """

    kind: ConstraintKind
    text: str = ""
    """The schema, list of choices or structural tag as JSON, or the regex or
    grammar.
    """
    any_whitespace: bool = True
    """True: any whitespace between JSON tokens; False: compact JSON."""
    additional_properties: bool = True
    """False: objects have only the properties their schema names, unless it
    declares
    `additionalProperties`. All backends enforce this."""
    whitespace_pattern: str | None = None
    """Regex of the whitespace between JSON tokens; it also matches none."""


def constraint_of(params: StructuredOutputsParams) -> Constraint:
    """Return the constraint of a request for backends."""
    value = getattr(params, params.kind)
    if params.kind == "json_object":
        value = ""
    return Constraint(
        params.kind,
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        not params.disable_any_whitespace,
        not params.disable_additional_properties,
        params.whitespace_pattern,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The bytes of every token by id; empty for special tokens and unused
    ids.
    """

    tokens: Sequence[bytes]
    end_ids: tuple[int, ...]
    """End tokens; allowed only where the grammar may end."""


class GrammarState(Protocol):
    """The grammar state of one output. Used by one thread at a time."""

    def accept(self, token: int) -> bool:
        """Advance by a token; return False and change nothing for a token
        that is not allowed.

        After an end token the output is done: further end tokens are accepted without
        an effect.
        """

    def rollback(self, k: int) -> None:
        """Undo the last `k` accepted tokens."""

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        """Fill the token bitmask: bit i % 32 of word i // 32 allows token i.

        End tokens are allowed where the output may end; only they are allowed once it
        is done. Raises `InvalidRequest` for a constraint that turns out to be too complex.
        """

    def is_done(self) -> bool:
        """Return whether an end token was accepted."""

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept the tokens of an output; return False at the first one that
        is not allowed.
        """


class Grammar(Protocol):
    """A compiled constraint; any number of outputs may use it
    concurrently.
    """

    memory_bytes: int
    """Approximate size in bytes, for the cache limit."""

    def start(self) -> GrammarState:
        """Return the state at the start of an output."""


class GrammarBackend(Protocol):
    """Compiles constraints. Constructed with a `Vocabulary`; thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None: ...

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Raise `InvalidRequest` for an invalid constraint or one the backend
        cannot enforce.

        The field of the error is `structured_outputs.` plus the constraint's kind. Runs
        at admission, without a vocabulary, and must be quick.
        """

    def compile(self, constraint: Constraint) -> Grammar:
        """Compile a constraint that passed `check`; may take seconds, never
        in the step thread.
        """
