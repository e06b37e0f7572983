"""Speculators, which propose draft tokens, and the shape of draft trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final, Protocol

from core.api import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from core.api.execution import NewRow


# --- draft trees ------------------------------------------------------------

Node = tuple[int, ...]
"""Path to a tree node: the child index at each level, 0 for the likeliest
child.
"""


@dataclass(frozen=True)
class TokenTree:
    """A tree of draft tokens. Nodes are ordered as computed: parents first,
    first path first.

    Indices count from 1; index 0 is the known token at the root.
    """

    nodes: tuple[Node, ...]
    """Path of each node, in order."""

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> TokenTree:
        """Return the tree with these nodes.

        Raises `ValueError` naming a node without its parent or without a likelier
        sibling.
        """
        ordered = tuple(sorted(nodes))
        known = {*ordered}
        if len(known) < len(ordered):
            raise ValueError("names a node twice")
        for node in ordered:
            if not node or min(node) < 0:
                raise ValueError(f"has a node {node}; a node is a tuple of numbers from 0 on")
            before = (node[:-1], (*node[:-1], node[-1] - 1))
            lacking = [each for each in before if each and min(each) >= 0 and each not in known]
            if lacking:
                raise ValueError(f"has {node} but not {lacking[0]}")
        return cls(ordered)

    @classmethod
    def chain(cls, length: int) -> TokenTree:
        """Return the tree without branches."""
        return _chain(length)

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def depths(self) -> list[int]:
        """Depth of each index; the root has depth 0."""
        return [0, *map(len, self.nodes)]

    @cached_property
    def children(self) -> list[list[int]]:
        """Indices of each index's children, likeliest first."""
        index_of = {node: index for index, node in enumerate(((), *self.nodes))}
        children: list[list[int]] = [[] for _ in index_of]
        for node in self.nodes:
            children[index_of[node[:-1]]].append(index_of[node])
        return children

    @cached_property
    def paths(self) -> list[list[int]]:
        """Indices on the path to each leaf; earlier paths share their common
        start.
        """
        index_of = {node: index for index, node in enumerate(self.nodes, 1)}
        leaves = [node for node in self.nodes if not self.children[index_of[node]]]
        return [[index_of[leaf[:end]] for end in range(1, len(leaf) + 1)] for leaf in leaves]


@cache
def _chain(length: int) -> TokenTree:
    return TokenTree(tuple((0,) * depth for depth in range(1, length + 1)))


# --- speculators ------------------------------------------------------------

MAX_DRAFT_TOKENS: Final = 64
"""Maximum number of draft tokens per request and step, for any method."""
DEFAULT_DRAFT_TOKENS: Final = 5


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """`--speculative-config`; names as in vLLM."""

    method: str = ""
    """Entry of kind `speculators`; default: derived from `model` (`ngram`, or
    a draft model or
    head in a folder)."""
    model: str = ""
    """Folder or hub id of a draft model with the same vocabulary, or of a
    draft head; of
    `suffix`: folder of outputs to start with."""
    num_speculative_tokens: int = 0
    """Maximum number of draft tokens per request and step; 0: 3 for `mtp` and EAGLE heads, 24 for
    `suffix`, else 5."""
    speculative_token_tree: tuple[Node, ...] = ()
    """Nodes of the draft tree, each as its path; empty: a chain."""
    prompt_lookup_max: int = 0
    """`ngram`: maximum n-gram length; 0: 5, or `prompt_lookup_min`
    if larger.
    """
    prompt_lookup_min: int = 0
    """`ngram`: minimum n-gram length; 0: 2, or `prompt_lookup_max` if
    smaller.
    """
    disable_by_batch_size: int = 0
    """Number of running requests from which on no draft tokens are used; 0:
    measured.
    """
    adaptive: bool = True
    """Adapt the number of draft tokens to step time and acceptance rate;
    false: always the
    maximum."""
    draft_tensor_parallel_size: int = 0
    """`draft_model`: ranks that share its layers; 0: as many as share the
    model's.
    """
    max_model_len: int = 0
    """`draft_model`: context length after which it proposes nothing; 0: its
    own.
    """
    revision: str = ""
    """`draft_model`: revision on the hub."""
    suffix_decoding_max_tree_depth: int = 24
    """`suffix`: maximum number of tokens to match and to propose."""
    suffix_decoding_max_cached_requests: int = 10000
    """`suffix`: number of cached outputs; 0: only the request's own text is
    searched.
    """
    suffix_decoding_max_spec_factor: float = 1.0
    """`suffix`: maximum number of draft tokens per matched token."""
    suffix_decoding_min_token_prob: float = 0.1
    """`suffix`: minimum share of cases in which a token must have
    followed.
    """

    def __post_init__(self) -> None:
        flag = "--speculative-config"
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float) and not 0 <= value < float("inf"):
                raise ConfigError(f"{flag}.{field.name} must not be negative, not {value!r}.")
        if self.num_speculative_tokens > MAX_DRAFT_TOKENS:
            raise ConfigError(
                f"{flag}.num_speculative_tokens is {self.num_speculative_tokens}; "
                f"at most {MAX_DRAFT_TOKENS} are checked in a step."
            )
        if self.disable_by_batch_size == 1:
            raise ConfigError(
                f"{flag}.disable_by_batch_size: got 1, which disables speculation; "
                "set 2 or more, or leave it out."
            )
        if self.prompt_lookup_min > self.prompt_lookup_max > 0:
            raise ConfigError(
                f"{flag}.prompt_lookup_min {self.prompt_lookup_min} is more than "
                f"prompt_lookup_max {self.prompt_lookup_max}."
            )
        if self.suffix_decoding_min_token_prob > 1:
            raise ConfigError(
                f"{flag}.suffix_decoding_min_token_prob is a share, 0 to 1, "
                f"not {self.suffix_decoding_min_token_prob}."
            )

    @property
    def max_draft_tokens(self) -> int:
        """Maximum number of draft tokens per step."""
        return self.num_speculative_tokens or DEFAULT_DRAFT_TOKENS

    @property
    def tree(self) -> TokenTree | None:
        """The draft tree; None: a chain."""
        if not self.speculative_token_tree:
            return None
        return TokenTree.of(self.speculative_token_tree)

    @property
    def lookup(self) -> tuple[int, int]:
        """Minimum and maximum n-gram length."""
        low = self.prompt_lookup_min
        high = self.prompt_lookup_max
        return low or min(2, high or 2), high or max(5, low)


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row to propose draft tokens for."""

    row: int
    owner: NewRow
    """The request in the row; a new object for another request and after a
    preemption.
    """
    tokens: npt.NDArray[np.int64]
    """[n] all known tokens, prompt and output; valid during the call,
    read-only.
    """
    max_draft_tokens: int
    """Maximum number of draft tokens to propose."""
    tree: TokenTree | None = None
    """Tree to fill, one token per node in its order; None: a chain.

    See `Speculator.supports_trees`.
    """


class Speculator(Protocol):
    """Proposes draft tokens; verification makes wrong ones harmless.

    Target of a `speculators` entry; its name is the `method` of `--speculative-config`.
    Constructed on each rank with (config, settings, registry): the `EngineConfig`, the
    `SpeculativeConfig` and the registry. Proposals are cut to the requested number and
    to valid token ids; a speculator that raises is disabled.

    Optional: `loaded(parts)` and `attach(parts)`, as of `RunnerExtension`;
    `on_hidden_states(batch, hidden)`, which receives the hidden states of each step
    like `after_forward`; `supports_trees = True` for one that fills trees and has no
    `is_lookup`.
    """

    is_lookup: bool
    """True: it proposes only on a match, quickly and without a model.

    It runs after every step, and only rows with a match get room for draft tokens.
    False: it always proposes, and runs when there is room.
    """

    def propose(self, rows: Sequence[DraftRow]) -> Sequence[Sequence[int]]:
        """Return up to `max_draft_tokens` tokens for each row; equal on all
        ranks.

        Runs in the order of the device's work, which at depth 2 is another thread than
        the planning one.
        """
