"""Baichuan 1 and 2: Llama with fused query, key and value; RoPE or, in the larger ones, ALiBi."""

from dataclasses import replace
from typing import Any, Final

from builtin_plugins.models.llama import equal_layers
from core.api import Entry, hookimpl
from core.model_spec.attention import alibi_slopes
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.baichuan"
NAMES = WeightNames(qkv="self_attn.W_pack")
ROTARY_HIDDEN_SIZE: Final = 4096
"""Hidden size of the models with RoPE; their config says it in no other way."""
NORMALIZED_VOCAB_SIZE: Final = 125_696
"""Vocabulary of Baichuan 2, which normalises the head's rows."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("BaiChuanForCausalLM", f"{HERE}:rotary", "Baichuan 7B"),
        Entry("BaichuanForCausalLM", f"{HERE}:spec", "Baichuan 13B and Baichuan 2"),
    ]


def rotary(hf_config: object) -> DecoderSpec:
    """Return the facts of a Baichuan 7B config."""
    return _baichuan(ModelFacts(hf_config))


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a config of Baichuan 13B or Baichuan 2."""
    facts = ModelFacts(hf_config)
    if facts.count("hidden_size") == ROTARY_HIDDEN_SIZE:
        return _baichuan(facts)
    return _baichuan(facts, rope=None, alibi=alibi_slopes(facts.count("num_attention_heads")))


def _baichuan(facts: ModelFacts, **attention: Any) -> DecoderSpec:
    spec = equal_layers(facts, facts.norm(), names=NAMES, **attention)
    length = facts.num_positions("model_max_length", spec.max_positions)
    is_normalized = facts.count("vocab_size") == NORMALIZED_VOCAB_SIZE
    return replace(
        spec,
        max_positions=facts.num_positions(default=length),
        head_normalized="rows" if is_normalized else "",
    )
