"""What an encoder's checkpoint is for, by the end of its architecture's name, and names every
encoder needs.
"""

from __future__ import annotations

from typing import Any

from core.api import ModelError
from core.model_spec.facts import ModelFacts
from core.model_spec.pooling import DenseSpec, PoolingSpec

IGNORED = ("*.position_ids", "*.inv_freq", "cls.*", "lm_head.*", "*.pooler.*", "pooler.*")
"""Ignored tensors: buffers, masked-LM heads, and BERT's pooler, which embeddings do not use."""
OLD_NORMS = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))


def bare(prefix: str, *parts: str) -> tuple[tuple[str, str], ...]:
    """Return rules for names: old ones of norms, and those of checkpoints that leave the model's
    prefix out.
    """
    return (*OLD_NORMS, (rf"^({'|'.join(parts)})(?=\.)", rf"{prefix}.\1"))


def pooling(
    facts: ModelFacts, sequence: tuple[DenseSpec, ...], *, pooler: str = "cls", **token: Any
) -> PoolingSpec:
    """Return what the checkpoint is for; `sequence` are the layers before the classifier of
    sequences.

    `token` changes the classifier of tokens.
    """
    names = facts.get("architectures") or [""]
    kind = str(names[0])
    if kind.endswith("ForSequenceClassification"):
        classifier = (
            sequence if sequence[-1].name.endswith("out_proj") else (*sequence, classify(facts))
        )
        return PoolingSpec(task="classify", pooler=pooler, head=classifier, is_cross_encoder=True)
    if kind.endswith("ForTokenClassification"):
        before = token.pop("before", ())
        return PoolingSpec(task="classify", per_token=True, head=(*before, classify(facts)))
    return PoolingSpec(task="embed", pooler="cls")


def classify(facts: ModelFacts, name: str = "classifier") -> DenseSpec:
    """Return the last product of a classifier."""
    return DenseSpec(name=name, width=facts.num_labels())


def dense(name: str, width: int, activation: str) -> DenseSpec:
    """Return a product with a bias and its activation."""
    return DenseSpec(name=name, width=width, activation=activation)


def refuse_other_positions(facts: ModelFacts) -> None:
    """Raise `ModelError` for unsupported position embeddings and for BERT decoders."""
    kind = facts.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ModelError(
            f"position_embedding_type {kind!r} in config.json is not served; only 'absolute' is."
        )
    facts.refuse("is_decoder")
    facts.refuse("add_cross_attention")
