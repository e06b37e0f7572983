"""InternLM 2 and 2.5: Llama with query, key and value fused by KV head; its reward model."""

from dataclasses import replace

from builtin_plugins.models.llama import equal_layers
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.names import WeightNames
from core.model_spec.pooling import DenseSpec, PoolingSpec

HERE = "builtin_plugins.models.internlm2"
NAMES = WeightNames(
    embed="model.tok_embeddings",
    head="output",
    attention_in="attention_norm",
    qkv="attention.wqkv",
    qkv_grouped=True,
    o="attention.wo",
    mlp_in="ffn_norm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    # The visual experts of Mono-InternVL, which no token of a text reads.
    ignored=("*.rotary_emb.inv_freq", "*.feed_forward_ve.*"),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("InternLM2ForCausalLM", f"{HERE}:spec", "InternLM 2 and 2.5"),
        Entry("InternLM2VEForCausalLM", f"{HERE}:spec", "the text layers of Mono-InternVL"),
        Entry("InternLM2ForRewardModel", f"{HERE}:reward", "InternLM 2 with a score per token"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of an InternLM 2 config."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("bias", True)
    return equal_layers(facts, facts.norm(), names=NAMES, qkv_bias=bias, out_bias=bias)


def reward(hf_config: object) -> DecoderSpec:
    """Return the facts of a reward model: one number per token, not normalised."""
    head = (DenseSpec(name="v_head", width=1, bias=False),)
    pooling = PoolingSpec(task="classify", per_token=True, head=head, output_activation="none")
    return replace(spec(hf_config), pooling=pooling)
