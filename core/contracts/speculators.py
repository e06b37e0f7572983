"""Speculators: what guesses the next tokens of requests, for the model to check in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Protocol

from core.contracts.token_trees import Node, TokenTree
from core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from core.step import NewRow


MOST_TOKENS: Final = 64
"""Guesses of one step of one request, whoever makes them."""
DEFAULT_TOKENS: Final = 5


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """The option's values; names as in vLLM."""

    method: str = ""
    """Entry of kind `speculators`; where it is left out, `model` says: `ngram`, or the folder of a
    draft model or a head.
    """
    model: str = ""
    """Folder or hub id of a small model with the same vocabulary, or of a head that guesses; of
    `suffix`: a folder with outputs
    that are there from the start."""
    num_speculative_tokens: int = 0
    """Tokens that are guessed at most for one step of one request; 0: 5, of `suffix` 24."""
    speculative_token_tree: tuple[Node, ...] = ()
    """Nodes of the tree that guesses have, each the way to it; none: they are a chain."""
    prompt_lookup_max: int = 0
    """Of `ngram`: tokens that are compared at most to find the end of a text again; 0: 5, or as
    `prompt_lookup_min`.
    """
    prompt_lookup_min: int = 0
    """Of `ngram`: tokens that must agree; 0: 2, or as `prompt_lookup_max` where that is less."""
    disable_by_batch_size: int = 0
    """No guesses in steps of so many requests or more; 0: where they cost more time than they save,
    as is measured.
    """
    adaptive: bool = True
    """Guess as many tokens as save time, by what steps take and how many guesses are right; false:
    always all there are.
    """
    draft_tensor_parallel_size: int = 0
    """Of `draft_model`: ranks that share its layers; 0: as many as share the model's."""
    max_model_len: int = 0
    """Of `draft_model`: tokens behind which it guesses no more; 0: as many as it states."""
    revision: str = ""
    """Of `draft_model`: of its hub id."""
    suffix_decoding_max_tree_depth: int = 24
    """Of `suffix`: tokens that are compared and guessed at most."""
    suffix_decoding_max_cached_requests: int = 10000
    """Of `suffix`: outputs that are remembered; 0: only a request's own text is read."""
    suffix_decoding_max_spec_factor: float = 1.0
    """Of `suffix`: tokens that are guessed at most for each token that agrees."""
    suffix_decoding_min_token_prob: float = 0.1
    """Of `suffix`: a guess is made if it followed in this share of the cases at least."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float) and not 0 <= value < float("inf"):
                raise ConfigError(
                    f"--speculative-config.{field.name} must not be negative, not {value!r}."
                )
        if self.num_speculative_tokens > MOST_TOKENS:
            raise ConfigError(
                f"--speculative-config.num_speculative_tokens is {self.num_speculative_tokens}; at "
                f"most {MOST_TOKENS} are checked in a step."
            )
        if self.disable_by_batch_size == 1:
            raise ConfigError(
                "--speculative-config.disable_by_batch_size 1 would never guess; set 2 or more, or "
                "leave it out."
            )
        if self.prompt_lookup_min > self.prompt_lookup_max > 0:
            raise ConfigError(
                f"--speculative-config.prompt_lookup_min {self.prompt_lookup_min} is more than "
                f"prompt_lookup_max {self.prompt_lookup_max}."
            )
        if self.suffix_decoding_min_token_prob > 1:
            raise ConfigError(
                "--speculative-config.suffix_decoding_min_token_prob is a share, 0 to 1, not "
                f"{self.suffix_decoding_min_token_prob}."
            )

    @property
    def most(self) -> int:
        """Tokens that are guessed at most."""
        return self.num_speculative_tokens or DEFAULT_TOKENS

    @property
    def tree(self) -> TokenTree | None:
        """The tree that guesses have; None: a chain."""
        return TokenTree.of(self.speculative_token_tree) if self.speculative_token_tree else None

    @property
    def lookup(self) -> tuple[int, int]:
        """Tokens that must agree, and that are compared at most."""
        least = self.prompt_lookup_min
        most = self.prompt_lookup_max
        return least or min(2, most or 2), most or max(5, least)


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row that guesses are wanted for."""

    row: int
    owner: NewRow
    """Who has the row; another object as soon as it is another request, or the same one again after
    a preemption.
    """
    tokens: npt.NDArray[np.int64]
    """[n] every known token, prompt and output; good for this call, and never written to."""
    most: int
    """Guesses wanted at most."""
    tree: TokenTree | None = None
    """What they shall be: one for each of its nodes, `most` in all, in its order; None: a chain.

    See `Speculator.branches`.
    """


class Speculator(Protocol):
    """Guesses tokens; knows nothing of their checking, which makes any guess harmless and wrong
    ones a waste of time.

    Target of an entry of kind `speculators`, whose name is the `method` of `--speculative-config`;
    constructed on each rank with (config, settings, registry): the `EngineConfig`, the option's
    `SpeculativeConfig` and what is plugged in. Whatever it guesses is cut to what was wanted and to
    tokens of the vocabulary; one that raises is not asked again. Optional, as in `RunnerExtension`:
    `loaded(parts)`, which returns the caching layers it adds, and `attach(parts)`; and `seen(batch,
    hidden)`, which is shown what the model has made of each step's tokens, as `after_forward`. One
    that can fill trees says `branches = True`, and has `finds` false.
    """

    finds: bool
    """True: it guesses only where it finds something, in a moment and without a model. It is asked
    behind every step, and
    only rows that it guesses for get room for guesses. False: it always guesses, and is asked when
    there is room.
    """

    def drafts(self, rows: Sequence[DraftRow]) -> Sequence[Sequence[int]]:
        """Return guesses for each row, none to `most`, that follow its known tokens; on all ranks
        the same.

        Called in the order of the device's work, which at depth 2 is another thread than the one
        that plans.
        """
