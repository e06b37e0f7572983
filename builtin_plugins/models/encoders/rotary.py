"""Encoders with rotary positions: ModernBERT, EuroBERT, Nomic BERT, GTE and Jina embeddings 3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builtin_plugins.models.encoders.heads import IGNORED, bare, dense, pooling
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec, post_norm_layer, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.pooling import DenseSpec
from core.model_spec.rope import LinearScaling, RopeSpec

MODERNBERT = WeightNames(
    embed="model.embeddings.tok_embeddings",
    embed_norm="model.embeddings.norm",
    layer="model.layers.{}",
    attention_in="attn_norm",
    mlp_in="mlp_norm",
    qkv="attn.Wqkv",
    o="attn.Wo",
    gate_up="mlp.Wi",
    down="mlp.Wo",
    final_norm="model.final_norm",
    rename=bare("model", "embeddings", "layers", "final_norm"),
    ignored=(*IGNORED, "decoder.*", "head.*"),
)


def modernbert(hf_config: object) -> DecoderSpec:
    """Return the facts of a ModernBERT config: pre-norm, bidirectional windows except in global
    layers.
    """
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm("norm_eps", 1e-5, bias=facts.flag("norm_bias"))
    bias = facts.flag("attention_bias")
    mlp_bias = facts.flag("mlp_bias")
    size = facts.heads()["head_size"]
    full = facts.rope(
        size, layer_type="full_attention", theta=160_000.0, theta_name="global_rope_theta"
    )
    local = facts.rope(size, layer_type="sliding_attention", theta_name="local_rope_theta")
    every = facts.count("global_attn_every_n_layers", 3)
    reach = facts.count("local_attention", 128) // 2 + 1
    mlp = facts.mlp(activation=facts.activation("hidden_activation", "gelu"), bias=mlp_bias)
    windows = facts.windows(reach, full_every=every)
    if facts.get("layer_types") is None:
        windows = [reach if index % every else None for index in range(facts.num_layers())]
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                rope=full if window is None else local,
                causal=False,
                window=window,
                qkv_bias=bias,
                out_bias=bias,
            ),
            mlp=mlp,
            attention_in=norm if index else None,
            mlp_in=norm,
        )
        for index, window in enumerate(windows)
    )
    head = DenseSpec(  # before the pooler and the classifier
        name="head.dense",
        width=facts.count("hidden_size"),
        bias=facts.flag("classifier_bias"),
        activation=facts.activation("classifier_activation", "gelu"),
        norm=norm,
        norm_name="head.norm",
    )
    return DecoderSpec(
        **facts.decoder(length=8192),
        layers=layers,
        norm=norm,
        embed_norm=norm,
        pooling=pooling(
            facts, (head,), pooler=str(facts.get("classifier_pooling", "cls")), before=(head,)
        ),
        names=MODERNBERT,
    )


def eurobert(hf_config: object) -> DecoderSpec:
    """Return the facts of a EuroBERT config: Llama's layers, seeing both sides."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    where = facts.choice("classifier_pooling", "late", ("bos", "mean", "late"))
    pooler = "cls" if where == "bos" else "mean"
    spec = pooling(facts, (dense("dense", facts.count("hidden_size"), "gelu"),), pooler=pooler)
    if spec.task == "classify" and not spec.per_token:
        spec = replace(spec, head_before_pooling=where == "late")
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(causal=False, qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(bias=facts.flag("mlp_bias")),
    )
    return DecoderSpec(
        **facts.decoder(layer, length=8192),
        norm=norm,
        pooling=spec,
        names=WeightNames(rename=bare("model", "embed_tokens", "layers", "norm"), ignored=IGNORED),
    )


def nomic(hf_config: object) -> DecoderSpec:
    """Return the facts of a Nomic BERT config, in its authors' fields or transformers'."""
    facts = ModelFacts(hf_config)
    hidden = facts.count("hidden_size", facts.count("n_embd", 768))
    heads = facts.count("num_attention_heads", facts.count("n_head", 12))
    size = facts.count("head_dim", 0, least=0) or facts.head_size(hidden, heads)
    base = facts.number("rotary_emb_base", 1000.0)
    share = facts.number("rotary_emb_fraction", 1.0)
    norm = NormSpec(
        "layer",
        facts.number("layer_norm_eps", facts.number("layer_norm_epsilon", 1e-12)),
        bias=True,
    )
    layer = post_norm_layer(
        norm,
        attention=AttentionSpec(
            heads=heads,
            kv_heads=heads,
            head_size=size,
            causal=False,
            rope=facts.rope(size, theta=base, share=share),
            qkv_bias=facts.flag("qkv_proj_bias"),
        ),
        mlp=MlpSpec(
            width=facts.count("intermediate_size", facts.count("n_inner", 4 * hidden)),
            activation=facts.activation(),
        ),
    )
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=facts.num_positions(default=facts.num_positions("n_positions")),
        token_types=facts.count("type_vocab_size", 2, least=0),
        layers=(layer,)
        * facts.num_layers("num_hidden_layers" if facts.get("num_hidden_layers") else "n_layer"),
        norm=None,
        embed_norm=norm,
        pooling=pooling(facts, (dense("nomic_bert.pooler.dense", hidden, "tanh"),)),
        names=_flash_names("nomic_bert", "attn", up="mlp.fc11", gate="mlp.fc12", down="mlp.fc2"),
    )


def jina(hf_config: object) -> DecoderSpec:
    """Return the facts of a Jina embeddings 3 config: XLM-RoBERTa with rotary positions; task
    adapters are left out.
    """
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm(eps=1e-5)
    hidden = facts.count("hidden_size")
    size = facts.heads()["head_size"]
    layer = post_norm_layer(
        norm,
        attention=facts.attention(
            rope=facts.rope(size, theta=facts.number("rotary_emb_base", 20_000.0)),
            causal=False,
            qkv_bias=True,
            out_bias=True,
        ),
        mlp=facts.mlp(activation=facts.activation(default="gelu"), gated=False, bias=True),
    )
    head = (
        dense("classifier.dense", hidden, "tanh"),
        dense("classifier.out_proj", facts.num_labels(), ""),
    )
    return DecoderSpec(
        **facts.decoder(layer, length=8194),
        token_types=facts.count("type_vocab_size", 1, least=0),
        norm=None,
        embed_norm=norm,
        pooling=pooling(facts, head),
        names=_flash_names("roberta", "mixer", up="mlp.fc1", down="mlp.fc2"),
    )


def gte(hf_config: object) -> DecoderSpec:
    """Return the facts of a GTE config, in its authors' files or transformers'."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm(eps=1e-12)
    hidden = facts.count("hidden_size")
    layer = post_norm_layer(
        norm,
        attention=facts.attention(
            rope=_stretched(facts), causal=False, qkv_bias=True, out_bias=True
        ),
        mlp=facts.mlp(activation=facts.activation(default="gelu"), out_bias=True),
    )
    names = WeightNames(
        embed="new.embeddings.word_embeddings",
        token_types="new.embeddings.token_type_embeddings",
        embed_norm="new.embeddings.LayerNorm",
        layer="new.encoder.layer.{}",
        qkv="attention.qkv_proj",
        o="attention.o_proj",
        attention_out="attn_ln",
        gate_up="mlp.up_gate_proj",
        up_first=True,
        down="mlp.down_proj",
        mlp_out="mlp_ln",
        rename=((r"^gte\.", "new."), *bare("new", "embeddings", "encoder", "pooler")),
        ignored=IGNORED,
    )
    return DecoderSpec(
        **facts.decoder(layer, length=8192),
        token_types=facts.count("type_vocab_size", 1, least=0),
        norm=None,
        embed_norm=norm,
        pooling=pooling(facts, (dense("new.pooler.dense", hidden, "tanh"),)),
        names=names,
    )


def _stretched(facts: ModelFacts) -> RopeSpec:
    """Return GTE's rotary positions; its authors' "ntk" raises the base and slows all pairs, at
    every length.
    """
    size = facts.heads()["head_size"]
    scaling = facts.part("rope_scaling")
    if scaling.get("type") != "ntk":
        return facts.rope(size, theta=160_000.0)
    factor = scaling.number("factor")
    return RopeSpec(
        size=size,
        theta=facts.number("rope_theta", 10_000.0) * factor,
        scaling=LinearScaling(factor ** (2 / size)),
    )


def _flash_names(prefix: str, mixer: str, **mlp: Any) -> WeightNames:
    """Return where checkpoints written for flash attention keep their parts."""
    return WeightNames(
        embed=f"{prefix}.embeddings.word_embeddings",
        token_types=f"{prefix}.embeddings.token_type_embeddings",
        embed_norm=f"{prefix}.emb_ln",
        layer=f"{prefix}.encoder.layers.{{}}",
        qkv=f"{mixer}.Wqkv",
        o=f"{mixer}.out_proj",
        attention_out="norm1",
        mlp_out="norm2",
        rename=(
            *bare(prefix, "embeddings", "emb_ln", "encoder", "pooler"),
            (r"\.parametrizations\.weight\.original$", ".weight"),
        ),
        ignored=(*IGNORED, "*.lora_A", "*.lora_B"),
        **mlp,
    )
