"""What a pooling model makes of its hidden states, as facts: the pooler, the layers behind it, the
last function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from core.errors import ModelError
from core.model_spec.parts import NormSpec

HEAD_ACTIVATIONS: Final = ("", "tanh", "gelu", "gelu_tanh", "relu", "silu", "sigmoid")
Last = Literal["none", "normalize", "softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """One product behind the pooler, its activation, and a norm after that."""

    name: str
    """Where the checkpoint keeps it."""
    width: int
    """Numbers it gives."""
    bias: bool = True
    activation: str = ""
    norm: NormSpec | None = None
    norm_name: str = ""
    residual: bool = False
    """What it reads is added to what it gives."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ModelError(f"{self.name} gives {self.width} numbers; it must give at least 1.")
        if self.activation not in HEAD_ACTIVATIONS:
            known = ", ".join(HEAD_ACTIVATIONS[1:])
            raise ModelError(
                f"the activation {self.activation!r} of {self.name} is not known; known: {known}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSpec:
    """From hidden states to what a request gets. An architecture states what its checkpoint was
    made for; what was left
    open, and what files beside it and the user say otherwise, is settled by the runner `pooling`.
    """

    task: Literal["embed", "classify"] = "embed"
    pooler: str = "last"
    """Entry of the kind `poolers`: which hidden states, or what of them, a prompt is known by.
    Several, joined by `+`, give
    a vector each, and these become one."""
    token_pooler: str = "all"
    """Likewise where each token is asked for."""
    per_token: bool = False
    """The model was made to say something of each token, not of the prompt."""
    head: tuple[DenseSpec, ...] = ()
    """Products behind the pooler, in order."""
    late: bool = False
    """They come before it, on every token."""
    logits: bool = False
    """The language model's own head comes first: numbers are those of tokens."""
    last: Last | None = None
    """What is done to the numbers at the end; None: embeddings are normalised, scores become
    probabilities.
    """
    mean: float = 0.0
    sigma: float = 1.0
    """Scores are shifted and scaled by these before that."""
    dimensions: int | None = None
    """Leading numbers of an embedding that are kept where the request does not say."""
    matryoshka: bool = False
    """Embeddings were made to be cut ..."""
    sizes: tuple[int, ...] = ()
    """... to these sizes; empty: to any."""
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    pairs: bool = False
    """Two texts are read together, and their score is that of the pair."""

    @property
    def poolers(self) -> tuple[str, ...]:
        """Names of what a prompt is pooled by, in the order of their vectors."""
        return tuple(self.pooler.split("+"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFacts:
    """What sentence-transformers' files beside a checkpoint say."""

    pooler: str | None = None
    normalize: bool = False
    include_prompt: bool = True
    """The tokens of a named prompt are pooled like the text's."""
    dense: tuple[DenseSpec, ...] = ()
    """Each in a folder of the name's first part, which the weight loader reads as well."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts put before others, by name."""
    default_prompt: str | None = None
    lower_case: bool = False
    last: Last | None = None
    """What a cross-encoder's scores become."""
