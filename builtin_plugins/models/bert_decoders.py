"""Decoders of BERT's form: BigBird, Megatron-BERT, RemBERT, RoFormer and the text part of GIT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builtin_plugins.models.encoders.bert import names_of
from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.layer import post_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.pooling import DenseSpec
from core.model_spec.rope import RopeSpec

HERE = "builtin_plugins.models.bert_decoders"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("BigBirdForCausalLM", f"{HERE}:big_bird", "BigBird as a decoder"),
        Entry("MegatronBertForCausalLM", f"{HERE}:megatron_bert", "Megatron-BERT as a decoder"),
        Entry("RemBertForCausalLM", f"{HERE}:rembert", "RemBERT as a decoder"),
        Entry("RoFormerForCausalLM", f"{HERE}:roformer", "RoFormer as a decoder"),
        Entry("GitForCausalLM", f"{HERE}:git", "GIT, text only"),
    ]


def _names(prefix: str, **names: str) -> WeightNames:
    """Return BERT's names, with those of the head that predicts words."""
    known = names_of(prefix)
    head = (r"^cls\.predictions\.decoder\.weight$", "cls.predictions.weight")
    ignored = ["*.position_ids", "cls.predictions.decoder.bias", "cls.seq_relationship.*"]
    ignored += ["*.pooler.*", "*.embed_positions.weight"]
    rename = (*known.rename, head)
    known = replace(known, head="cls.predictions", rename=rename, ignored=tuple(ignored))
    return replace(known, **names)  # type: ignore[arg-type]


def _transform(facts: ModelFacts, width: int, stored: str) -> DenseSpec:
    """Return the dense layer before the head, with its tensors below `stored`."""
    activation = facts.activation(default="gelu")
    norm: dict[str, Any] = {"norm": facts.layer_norm(eps=1e-12), "norm_name": f"{stored}.LayerNorm"}
    return DenseSpec(name=f"{stored}.dense", width=width, activation=activation, **norm)


def _decoder(
    facts: ModelFacts, names: WeightNames, *, rope: RopeSpec | None = None, **changes: Any
) -> DecoderSpec:
    """Return a causal model of BERT's form; `changes` are others of its facts."""
    facts.refuse("add_cross_attention")
    if not facts.flag("is_decoder"):
        raise ModelError(
            "is_decoder: got false in config.json; expected true, because attention is "
            "bidirectional without it. Set it with --hf-overrides."
        )
    norm = facts.layer_norm(eps=1e-12)
    layer = post_norm_layer(
        norm,
        attention=facts.attention(rope=rope, qkv_bias=facts.flag("use_bias", True), out_bias=True),
        mlp=facts.mlp(activation=facts.activation(default="gelu"), gated=False, bias=True),
    )
    hidden = facts.count("hidden_size")
    return DecoderSpec(
        **{
            **facts.decoder(layer, tied=True),
            "learned_positions": 0 if rope else facts.num_positions(),
            "token_types": facts.count("type_vocab_size", 2),
            "norm": None,
            "embed_norm": norm,
            "head_bias": True,
            "head_transform": _transform(facts, hidden, "cls.predictions.transform"),
            "names": names,
            **changes,
        }
    )


def big_bird(hf_config: object) -> DecoderSpec:
    """Return the facts of a BigBird config; its sparse attention begins after some blocks."""
    facts = ModelFacts(hf_config)
    scaled = facts.flag("rescale_embeddings")
    changes: dict[str, Any] = {"embed_scale": facts.count("hidden_size") ** 0.5 if scaled else 1.0}
    if facts.get("attention_type", "block_sparse") == "block_sparse":
        blocks = 5 + 2 * facts.count("num_random_blocks", 3)
        changes["context_limit"] = blocks * facts.count("block_size", 64)
        changes["limited_by"] = "block_size: with more, attention is to random blocks"
    return _decoder(facts, _names("bert"), **changes)


def megatron_bert(hf_config: object) -> DecoderSpec:
    """Return the facts of a Megatron-BERT config: pre-norm, and no norm of the embedding."""
    facts = ModelFacts(hf_config)
    names = _names("bert", attention_in="attention.ln", mlp_in="ln", final_norm="bert.encoder.ln")
    norm = facts.layer_norm(eps=1e-12)
    spec = _decoder(facts, names, norm=norm, embed_norm=None)
    norms: dict[str, Any] = {
        "attention_in": norm,
        "mlp_in": norm,
        "attention_out": None,
        "mlp_out": None,
    }
    layers = tuple(replace(layer, post_norm=False, **norms) for layer in spec.layers)
    return replace(spec, layers=layers)


def rembert(hf_config: object) -> DecoderSpec:
    """Return the facts of a RemBERT config: embedding and head have widths of their own."""
    facts = ModelFacts(hf_config)
    embed_in = "rembert.encoder.embedding_hidden_mapping_in"
    names = replace(
        _names("rembert", embed_in=embed_in, head="cls.predictions.decoder"),
        rename=names_of("rembert").rename,
        ignored=("*.position_ids", "*.pooler.*"),
    )
    width = facts.count("output_embedding_size", 1664)
    return _decoder(
        facts,
        names,
        tied_head=False,
        embed_size=facts.count("input_embedding_size", 256),
        embed_in_last=True,
        head_transform=_transform(facts, width, "cls.predictions"),
    )


def roformer(hf_config: object) -> DecoderSpec:
    """Return the facts of a RoFormer config: interleaved RoPE instead of learned positions."""
    facts = ModelFacts(hf_config)
    facts.refuse("rotary_value")
    width = facts.count("embedding_size", facts.count("hidden_size"))
    return _decoder(
        facts,
        _names("roformer", embed_in="roformer.embeddings_project"),
        rope=RopeSpec(facts.heads()["head_size"], 10_000.0, interleaved=True),
        embed_size=width,
        embed_in_last=True,
        head_transform=_transform(facts, width, "cls.predictions.transform"),
    )


def git(hf_config: object) -> DecoderSpec:
    """Return the facts of a GIT config; its encoder of images is left out."""
    facts = ModelFacts(with_fields(hf_config, is_decoder=True))
    names = replace(
        _names("git", head="output"),
        ignored=("*.position_ids", "git.image_encoder.*", "git.visual_projection.*", "git.img_*"),
    )
    tied = facts.flag("tie_word_embeddings")
    return _decoder(facts, names, tied_head=tied, token_types=0, head_transform=None)
