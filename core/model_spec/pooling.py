"""Pooling of a model as data: the pooler, the head layers after it, the output activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from core.errors import ModelError
from core.model_spec.attention import NormSpec

HEAD_ACTIVATIONS: Final = ("", "tanh", "gelu", "gelu_tanh", "relu", "silu", "sigmoid")
OutputActivation = Literal["none", "normalize", "softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """One dense layer of the pooling head: projection, activation, optional norm."""

    name: str
    """Checkpoint prefix."""
    width: int
    """Output width."""
    bias: bool = True
    activation: str = ""
    norm: NormSpec | None = None
    norm_name: str = ""
    residual: bool = False
    """Whether the input is added to the output."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ModelError(f"width of {self.name}: got {self.width}; expected at least 1.")
        if self.activation not in HEAD_ACTIVATIONS:
            known = ", ".join(HEAD_ACTIVATIONS[1:])
            raise ModelError(
                f"activation of {self.name}: got {self.activation!r}; expected one of {known}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSpec:
    """From hidden states to embeddings or scores.

    An architecture states its own values. The runner `pooling` overlays those of the checkpoint's
    files and of the user.
    """

    task: Literal["embed", "classify"] = "embed"
    pooler: str = "last"
    """Pooler of a whole prompt (kind `poolers`); the vectors of several, joined by `+`, are
    concatenated.
    """
    token_pooler: str = "all"
    """Pooler of per-token requests."""
    per_token: bool = False
    """Whether the model is for per-token outputs only."""
    head: tuple[DenseSpec, ...] = ()
    """Dense layers after the pooler, in order."""
    head_before_pooling: bool = False
    """Whether `head` runs on every token, before the pooler."""
    logits: bool = False
    """Whether the LM head comes first, so outputs are scores of tokens."""
    output_activation: OutputActivation | None = None
    """Final function; None: normalize embeddings, turn scores into probabilities."""
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    """Divisor of scores, after subtracting `logit_mean` and before the output activation."""
    dimensions: int | None = None
    """Default length that embeddings are truncated to; None: full length."""
    matryoshka: bool = False
    """Whether embeddings may be truncated (Matryoshka)."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """Allowed lengths of truncated embeddings; empty: any."""
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    answer_tokens: tuple[int, int] | None = None
    """Tokens of the answers no and yes: the score is the difference of their logits."""
    is_cross_encoder: bool = False
    """Whether two texts are read as one prompt and scored together."""
    pair_end_ids: tuple[int, ...] = ()
    """Tokens after a pair that a chat template renders; no text has them."""

    @property
    def poolers(self) -> tuple[str, ...]:
        """Names of the prompt poolers, in the order of their vectors."""
        return tuple(self.pooler.split("+"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFacts:
    """Values from the sentence-transformers files of a checkpoint."""

    pooler: str | None = None
    normalize: bool = False
    include_prompt: bool = True
    """Whether the tokens of a named prompt are pooled, too."""
    dense: tuple[DenseSpec, ...] = ()
    """Dense layers; each has its own weight folder, the first part of its name."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Named prompts, which are put before the text."""
    default_prompt: str | None = None
    lower_case: bool = False
    output_activation: OutputActivation | None = None
    """Output activation of a cross-encoder's scores."""
