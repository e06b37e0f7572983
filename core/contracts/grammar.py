"""Grammar backends: what holds outputs to a schema, a regex or a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from core.types.structured import Constraint

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Tokens by id, as bytes; special tokens and ids that nothing stands for are empty."""

    tokens: Sequence[bytes]
    end_ids: tuple[int, ...]
    """Tokens that end an output: allowed where a grammar may end, and only there."""


class GrammarState(Protocol):
    """Where one output is in its grammar. Used by one thread at a time."""

    def accept(self, token: int) -> bool:
        """Go on by a token; False, and nothing changed, for one that may not come here.

        Once an end token was accepted the output is done: further end tokens are accepted and
        change nothing.
        """

    def rollback(self, k: int) -> None:
        """Take back the last `k` accepted tokens."""

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        """Write which tokens may come next: bit i % 32 of word i // 32 for token i, every word of
        the mask.

        End tokens may come where the output may end; when it is done, nothing else may.
        """

    def is_done(self) -> bool:
        """Say whether an end token was accepted."""

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept the tokens of an output so far; False at the first that may not come."""


class Grammar(Protocol):
    """A compiled constraint; any number of outputs may use it at once."""

    memory_bytes: int
    """About how much it takes, for the cache's bound."""

    def start(self) -> GrammarState:
        """Return a state at the beginning of an output."""


class GrammarBackend(Protocol):
    """Compiles constraints.

    Constructed with a `Vocabulary`; may be called from several threads at once.
    """

    def __init__(self, vocabulary: Vocabulary) -> None: ...

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Raise `InvalidRequest` for a constraint that is broken or that the backend cannot hold
        outputs to exactly.

        The field it names is `structured_outputs.` and the constraint's kind. Called at admission,
        so it is quick: it needs no vocabulary.
        """

    def compile(self, constraint: Constraint) -> Grammar:
        """Return the grammar of a constraint that passed `check`; may take seconds, off the thread
        that steps.
        """
