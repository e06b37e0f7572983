"""Qwen3-Next, Qwen 3.5 and Qwen4-Exp: gated delta rule; every fourth layer has gated attention."""

from dataclasses import replace
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import PooledIndexerSpec
from core.model_spec.composite import text_part
from core.model_spec.compressed import GatedStreamsSpec
from core.model_spec.decoder import DecoderSpec, MtpLayerSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.ngrams import NgramSpec
from core.model_spec.recurrent import GatedDeltaSpec

HERE = "builtin_plugins.models.qwen3_next"
QWEN3 = WeightNames(
    recurrent="linear_attn",
    attention_gate="",
    shared_gate="mlp.shared_expert.gate_proj",
    shared_up="mlp.shared_expert.up_proj",
    shared_down="mlp.shared_expert.down_proj",
    ignored=("*.rotary_emb.inv_freq", "mtp.*"),
)
QWEN4 = replace(
    QWEN3,
    hyper_attention="attn_hyper_connection",
    hyper_mlp="mlp_hyper_connection",
    hyper_head="model.hyper_connection_mixer",
    # The hash functions, which the config determines.
    ignored=(*QWEN3.ignored, "*.layer_multipliers", "*.ngram_heads_*"),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Qwen3NextForCausalLM", f"{HERE}:qwen3_next", "Qwen3-Next"),
        Entry("Qwen3_5ForCausalLM", f"{HERE}:qwen3_5", "Qwen 3.5, text"),
        Entry("Qwen3_5MoeForCausalLM", f"{HERE}:qwen3_5_moe", "Qwen 3.5 with experts, text"),
        Entry("Qwen4ExpForCausalLM", f"{HERE}:qwen4_exp", "Qwen4-Exp, text: n-grams, streams"),
        Entry("Qwen4ExpForConditionalGeneration", f"{HERE}:qwen4_text", "Qwen4-Exp, text alone"),
    ]


def qwen3_next(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen3-Next config."""
    facts = ModelFacts(hf_config)
    experts = replace(_experts(facts), renormalize=facts.flag("norm_topk_prob", True))
    step = facts.count("decoder_sparse_step", 1)
    dense = facts.indices("mlp_only_layers")
    mlps = [
        facts.mlp() if i in dense or (i + 1) % step else experts for i in range(facts.num_layers())
    ]
    return _decoder(facts, _delta(facts, grouped=True), mlps)


def qwen3_5(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen 3.5 text config."""
    facts = ModelFacts(hf_config)
    return _decoder(facts, _delta(facts), [facts.mlp()] * facts.num_layers())


def qwen3_5_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen 3.5 text config with experts in every layer."""
    facts = ModelFacts(hf_config)
    return _decoder(facts, _delta(facts), [_experts(facts)] * facts.num_layers())


def qwen4_exp(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen4-Exp text config: gated streams, an indexer, hashed n-grams."""
    facts = ModelFacts(hf_config)
    experts = replace(_experts(facts), renormalize=facts.flag("norm_topk_prob", True))
    ratio = facts.count("indexer_compress_ratio")
    indexer = PooledIndexerSpec(
        heads=facts.count("indexer_n_heads"),
        size=facts.count("indexer_head_dim"),
        block_size=ratio,
        top_blocks=facts.count("indexer_budget") // ratio,
        norm=facts.norm(offset=1.0),
    )
    spec = _decoder(facts, _delta(facts), [experts] * facts.num_layers(), indexer=indexer)
    numbers = sorted(facts.indices("ple_layer_ids"))
    ngrams = {number - 1: _ngrams(facts, index) for index, number in enumerate(numbers)}
    layers = tuple(
        replace(layer, attention_in=None, mlp_in=None, ngrams=ngrams.get(index))
        for index, layer in enumerate(spec.layers)
    )
    streams = GatedStreamsSpec(
        streams=facts.count("hc_count", 4),
        rank=facts.count("hc_lowrank", 320),
        eps=facts.number("rms_norm_eps", 1e-6),
    )
    return replace(spec, layers=layers, norm=None, mtp=None, hyper_connections=streams, names=QWEN4)


def qwen4_text(hf_config: object) -> DecoderSpec:
    """Return the text part of Qwen4-Exp."""
    return text_part(hf_config, qwen4_exp, "model.visual.*")


def _ngrams(facts: ModelFacts, index: int) -> NgramSpec:
    """Return the n-grams of the layer with this number among those that have them."""
    ends = facts.required("eos_token_id")
    return NgramSpec(
        index=index,
        vocab_size=facts.count("vocab_size"),
        width=facts.count("ple_embed_dim", facts.count("hidden_size")),
        size=facts.count("ngram_size", 3),
        heads=facts.count("heads_per_ngram", 8),
        min_rows=int(facts.number("ngram_vocab_size_base", 2e7)),
        multiple=facts.count("make_ngram_vocab_size_divisible_by", 128),
        shards=facts.count("split_ngram_parts", 512),
        separator=ends[0] if isinstance(ends, list) else ends,
        kernel=facts.count("ple_conv_kernel_size", 4),
        seed=facts.count("seed", 1234, least=0),
        eps=facts.number("rms_norm_eps", 1e-6),
    )


def _delta(facts: ModelFacts, *, grouped: bool = False) -> GatedDeltaSpec:
    return GatedDeltaSpec(
        heads=facts.count("linear_num_value_heads", 32),
        key_heads=facts.count("linear_num_key_heads", 16),
        key_size=facts.count("linear_key_head_dim", 128),
        value_size=facts.count("linear_value_head_dim", 128),
        kernel=facts.count("linear_conv_kernel_dim", 4),
        layout="grouped" if grouped else "joined",
        activation=facts.activation(),
        sigmoid_gate=facts.get("output_gate_type") == "sigmoid",
        eps=facts.number("rms_norm_eps", 1e-6),
    )


def _experts(facts: ModelFacts) -> MoeSpec:
    return MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts")),
        top_k=facts.count("num_experts_per_tok"),
        width=facts.count("moe_intermediate_size", 512),
        activation=facts.activation(),
        shared=MlpSpec(
            width=facts.count("shared_expert_intermediate_size", 512), activation=facts.activation()
        ),
        shared_expert_gate=True,
    )


def _decoder(
    facts: ModelFacts, delta: GatedDeltaSpec, mlps: list[MlpSpec | MoeSpec], **others: Any
) -> DecoderSpec:
    """Return a decoder with attention in the layers of `layer_types` or an interval."""
    norm = facts.norm(offset=1.0)
    bias = facts.flag("attention_bias")
    heads = facts.heads(256)
    rope = facts.rope(heads["head_size"], share=0.25)
    attention = facts.attention(
        **heads, rope=rope, qk_norm=norm, gate=True, qkv_bias=bias, out_bias=bias, **others
    )
    every = facts.count("full_attention_interval", 4)
    kinds = facts.layer_kinds("full_attention", "indexed_attention", "linear_attention") or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(len(mlps))
    ]
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=None if kind == "linear_attention" else attention,
            recurrent=delta if kind == "linear_attention" else None,
            mlp=mlp,
        )
        for kind, mlp in zip(kinds, mlps, strict=True)
    )
    mtp = MtpLayerSpec(
        layer=pre_norm_layer(norm, attention=attention, mlp=mlps[-1]),
        norm=norm,
        stored="mtp.layers.0",
        tensors=("mtp.*",),
        token_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        product="mtp.fc",
        final_norm="mtp.norm",
        continues_normed=True,
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, mtp=mtp, names=QWEN3)
