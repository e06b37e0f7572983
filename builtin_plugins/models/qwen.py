"""Qwen2 to Qwen3, dense: Llama with biases or norms of query and key heads."""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec, MtpLayerSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import pre_norm_layer
from core.model_spec.pooling import DenseSpec, PoolingSpec

HERE = "builtin_plugins.models.qwen"
STEP_TAG = 151651
"""Token that ends a step in the published process reward model."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Qwen2ForCausalLM", f"{HERE}:qwen2", "Qwen2 and Qwen2.5"),
        Entry("MiMoForCausalLM", f"{HERE}:mimo", "MiMo 7B"),
        Entry("Qwen2ForRewardModel", f"{HERE}:reward", "Qwen2 with a score of each token"),
        Entry("Qwen2ForProcessRewardModel", f"{HERE}:process_reward", "Qwen2, a verdict a step"),
        Entry("Qwen3ForCausalLM", f"{HERE}:qwen3", "Qwen3, dense"),
    ]


def qwen2(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen2 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    size = facts.window(4096) if facts.flag("use_sliding_window") else None
    layers = tuple(
        pre_norm_layer(
            norm, attention=facts.attention(qkv_bias=True, window=window), mlp=facts.mlp()
        )
        for window in facts.windows(size, full_below=facts.count("max_window_layers", 28, least=0))
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)


def mimo(hf_config: object) -> DecoderSpec:
    """Return the facts of a MiMo config: Qwen2 with an MTP layer."""
    facts = ModelFacts(hf_config)
    decoder = qwen2(hf_config)
    stored = "model.mtp_layers.0"
    norm = facts.norm()
    mtp = MtpLayerSpec(
        layer=decoder.layers[0],
        norm=norm,
        stored=stored,
        tensors=(f"{stored}.*",),
        token_norm=f"{stored}.token_layernorm",
        hidden_norm=f"{stored}.hidden_layernorm",
        product=f"{stored}.input_proj",
        hidden_first=True,
        final_norm=f"{stored}.final_layernorm",
        continues_normed=True,
    )
    names = replace(decoder.names, ignored=(*decoder.names.ignored, "model.mtp_layers.*"))
    used = mtp if facts.count("num_nextn_predict_layers", 0, least=0) else None
    return replace(decoder, mtp=used, names=names)


def reward(hf_config: object) -> DecoderSpec:
    """Return the facts of a reward model: two dense layers on every token."""
    return replace(
        qwen2(hf_config),
        pooling=PoolingSpec(
            task="classify", per_token=True, head=_score(hf_config, 1), output_activation="none"
        ),
    )


def process_reward(hf_config: object) -> DecoderSpec:
    """Return the facts of a process reward model: probabilities of bad and good per step."""
    head = _score(hf_config, 2)
    steps = PoolingSpec(
        task="classify", per_token=True, token_pooler="step", head=head, step_tag_id=STEP_TAG
    )
    return replace(qwen2(hf_config), pooling=steps)


def _score(hf_config: object, width: int) -> tuple[DenseSpec, ...]:
    hidden = ModelFacts(hf_config).count("hidden_size")
    return DenseSpec(name="score.0", width=hidden, activation="relu"), DenseSpec(
        name="score.2", width=width
    )


def qwen3(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen3 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    size = facts.window(4096) if facts.flag("use_sliding_window") else None
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(
                **facts.heads(128), qkv_bias=bias, out_bias=bias, qk_norm=norm, window=window
            ),
            mlp=facts.mlp(),
        )
        for window in facts.windows(size, full_below=facts.count("max_window_layers", 28, least=0))
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)
