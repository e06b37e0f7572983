"""BERT and its variants: learned positions, post-norm, plain MLPs, bidirectional attention."""

from __future__ import annotations

from dataclasses import replace

from builtin_plugins.models.encoders.heads import (
    IGNORED,
    bare,
    dense,
    pooling,
    refuse_other_positions,
)
from builtin_plugins.models.encoders.rotary import jina
from builtin_plugins.models.t5 import ENCODER as T5_NAMES
from core.api import ModelError
from core.model_spec.attention import AttentionSpec, NormSpec, RelativeBiasSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec, post_norm_layer, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.pooling import DenseSpec


def names_of(prefix: str) -> WeightNames:
    """Return where a checkpoint of BERT's form keeps its parts."""
    return WeightNames(
        embed=f"{prefix}.embeddings.word_embeddings",
        positions=f"{prefix}.embeddings.position_embeddings",
        token_types=f"{prefix}.embeddings.token_type_embeddings",
        embed_norm=f"{prefix}.embeddings.LayerNorm",
        layer=f"{prefix}.encoder.layer.{{}}",
        q="attention.self.query",
        k="attention.self.key",
        v="attention.self.value",
        o="attention.output.dense",
        attention_out="attention.output.LayerNorm",
        up="intermediate.dense",
        down="output.dense",
        mlp_out="output.LayerNorm",
        rename=bare(prefix, "embeddings", "embeddings_project", "encoder", "pooler"),
        ignored=IGNORED,
    )


def layer_of(facts: ModelFacts, norm: NormSpec, relative: RelativeBiasSpec | None) -> LayerSpec:
    """Return one layer of BERT's form."""
    attention = facts.attention(
        rope=None, causal=False, qkv_bias=True, out_bias=True, relative=relative
    )
    mlp = facts.mlp(activation=facts.activation(default="gelu"), gated=False, bias=True)
    return post_norm_layer(norm, attention=attention, mlp=mlp)


def spec_of(
    facts: ModelFacts,
    names: WeightNames,
    sequence: tuple[DenseSpec, ...],
    *,
    offset: int = 0,
    types: int = 2,
    relative: RelativeBiasSpec | None = None,
) -> DecoderSpec:
    """Return a model of BERT's form; position 0 is row `offset` of its table."""
    refuse_other_positions(facts)
    norm = facts.layer_norm(eps=1e-12)
    positions = facts.num_positions(default=512) - offset
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=facts.count("hidden_size"),
        max_positions=positions,
        learned_positions=positions,
        position_offset=offset,
        token_types=facts.count("type_vocab_size", types, least=0) if types else 0,
        layers=(layer_of(facts, norm, relative),) * facts.num_layers(),
        norm=None,
        embed_norm=norm,
        pooling=pooling(facts, sequence),
        names=names,
    )


def bert(hf_config: object) -> DecoderSpec:
    """Return the facts of a BERT config."""
    facts = ModelFacts(hf_config)
    return spec_of(
        facts, names_of("bert"), (dense("bert.pooler.dense", facts.count("hidden_size"), "tanh"),)
    )


def roberta(hf_config: object) -> DecoderSpec:
    """Return the facts of a RoBERTa config: positions begin after the padding token's."""
    facts = ModelFacts(hf_config)
    if facts.get("position_embedding_type") == "rotary":
        return jina(hf_config)
    head = dense("classifier.dense", facts.count("hidden_size"), "tanh"), dense_out(facts)
    return spec_of(
        facts,
        names_of("roberta"),
        head,
        offset=facts.count("pad_token_id", 1, least=0) + 1,
        types=1,
    )


def dense_out(facts: ModelFacts) -> DenseSpec:
    """Return the output layer of RoBERTa's classifier."""
    return DenseSpec(name="classifier.out_proj", width=facts.num_labels())


def electra(hf_config: object) -> DecoderSpec:
    """Return the facts of an ELECTRA config: embeddings may be narrower than the layers."""
    facts = ModelFacts(hf_config)
    hidden = facts.count("hidden_size")
    names = replace(
        names_of("electra"),
        embed_in="electra.embeddings_project",
        ignored=(*IGNORED, "discriminator_predictions.*", "generator_*"),
    )
    spec = spec_of(facts, names, (dense("classifier.dense", hidden, "gelu"), dense_out(facts)))
    return replace(spec, embed_size=facts.count("embedding_size", 128), embed_in_last=True)


def mpnet(hf_config: object) -> DecoderSpec:
    """Return the facts of an MPNet config: relative position bias."""
    facts = ModelFacts(hf_config)
    names = replace(
        names_of("mpnet"),
        q="attention.attn.q",
        k="attention.attn.k",
        v="attention.attn.v",
        o="attention.attn.o",
        attention_out="attention.LayerNorm",
        relative="mpnet.encoder.relative_attention_bias",
    )
    head = dense("classifier.dense", facts.count("hidden_size"), "tanh"), dense_out(facts)
    offset = facts.count("pad_token_id", 1, least=0) + 1
    relative = RelativeBiasSpec(
        facts.count("relative_attention_num_buckets", 32), bidirectional=True
    )
    return spec_of(facts, names, head, offset=offset, types=0, relative=relative)


def albert(hf_config: object) -> DecoderSpec:
    """Return the facts of an ALBERT config: groups of layers share their weights."""
    facts = ModelFacts(hf_config)
    if facts.count("inner_group_num", 1) != 1:
        raise ModelError(
            "inner_group_num in config.json is more than 1, which this architecture does not serve."
        )
    count = facts.num_layers()
    groups = facts.count("num_hidden_groups", 1)
    hidden = facts.count("hidden_size")
    names = replace(
        names_of("albert"),
        layer="albert.encoder.albert_layer_groups.{}.albert_layers.0",
        embed_in="albert.encoder.embedding_hidden_mapping_in",
        q="attention.query",
        k="attention.key",
        v="attention.value",
        o="attention.dense",
        attention_out="attention.LayerNorm",
        up="ffn",
        down="ffn_output",
        mlp_out="full_layer_layer_norm",
        ignored=(*IGNORED, "predictions.*", "sop_classifier.*"),
    )
    return replace(
        spec_of(facts, names, (dense("albert.pooler", hidden, "tanh"),)),
        embed_size=facts.count("embedding_size", 128),
        embed_in_last=True,
        stored_layers=tuple(index * groups // count for index in range(count)),
    )


def distilbert(hf_config: object) -> DecoderSpec:
    """Return the facts of a DistilBERT config, with its own field names."""
    facts = ModelFacts(hf_config)
    hidden = facts.count("dim")
    heads = facts.count("n_heads", 12)
    names = WeightNames(
        embed="distilbert.embeddings.word_embeddings",
        positions="distilbert.embeddings.position_embeddings",
        embed_norm="distilbert.embeddings.LayerNorm",
        layer="distilbert.transformer.layer.{}",
        q="attention.q_lin",
        k="attention.k_lin",
        v="attention.v_lin",
        o="attention.out_lin",
        attention_out="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        mlp_out="output_layer_norm",
        rename=bare("distilbert", "embeddings", "transformer"),
        ignored=(*IGNORED, "vocab_*"),
    )
    norm = NormSpec("layer", eps=1e-12, bias=True)
    positions = facts.num_positions(default=512)
    attention = AttentionSpec(
        heads=heads,
        kv_heads=heads,
        head_size=facts.head_size(hidden, heads),
        causal=False,
        qkv_bias=True,
        out_bias=True,
    )
    activation = facts.activation("activation", "gelu")
    mlp = MlpSpec(
        width=facts.count("hidden_dim", 3072), activation=activation, gated=False, bias=True
    )
    layer = post_norm_layer(norm, attention=attention, mlp=mlp)
    return DecoderSpec(
        **facts.decoder(layer, length=512, hidden="dim", layers="n_layers"),
        learned_positions=positions,
        norm=None,
        embed_norm=norm,
        pooling=pooling(facts, (dense("pre_classifier", hidden, "relu"),)),
        names=names,
    )


def t5(hf_config: object) -> DecoderSpec:
    """Return the facts of a T5 encoder: relative position bias, unscaled scores."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("layer_norm_epsilon", 1e-6))
    heads = facts.count("num_heads", 8)
    kind = str(facts.get("feed_forward_proj", "relu"))
    gated = kind.startswith("gated-")
    activation = kind.removeprefix("gated-")
    names = replace(
        T5_NAMES,
        up=f"layer.1.DenseReluDense.{'wi_1' if gated else 'wi'}",
        ignored=("encoder.embed_tokens.weight", "decoder.*", "lm_head.*"),
    )
    relative = RelativeBiasSpec(
        facts.count("relative_attention_num_buckets", 32),
        facts.count("relative_attention_max_distance", 128),
        bidirectional=True,
    )
    attention = AttentionSpec(
        heads=heads,
        kv_heads=heads,
        head_size=facts.count("d_kv", 64),
        causal=False,
        scale=1.0,
        relative=relative,
    )
    known = {
        "relu": "relu",
        "gelu": "gelu_tanh" if gated else "gelu",
        "gelu_new": "gelu_tanh",
        "silu": "silu",
    }
    if activation not in known:
        raise ModelError(
            f"feed_forward_proj {kind!r} in config.json is not known; known: {', '.join(known)}."
        )
    mlp = MlpSpec(width=facts.count("d_ff", 2048), activation=known[activation], gated=gated)
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=facts.count("d_model"),
        max_positions=facts.num_positions("n_positions", 512),
        layers=(pre_norm_layer(norm, attention=attention, mlp=mlp),)
        * facts.num_layers("num_layers"),
        norm=norm,
        pooling=replace(pooling(facts, ()), pooler="mean"),
        names=names,
    )
