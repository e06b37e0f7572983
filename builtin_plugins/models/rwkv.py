"""RWKV 4: time mixing and channel mixing in turn."""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import RwkvChannelMixSpec, RwkvTimeMixSpec

NAMES = WeightNames(
    embed="rwkv.embeddings",
    embed_norm="rwkv.pre_ln",
    final_norm="rwkv.ln_out",
    head="head",
    layer="rwkv.blocks.{}.{}",
    layers_within=2,
    attention_in="norm",
    rename=(
        (r"\.blocks\.0\.pre_ln\.", ".pre_ln."),
        (r"\.ln1\.", ".0.norm."),
        (r"\.attention\.", ".0.mixer."),
        (r"\.ln2\.", ".1.norm."),
        (r"\.feed_forward\.", ".1.mixer."),
    ),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("RwkvForCausalLM", "builtin_plugins.models.rwkv:spec", "RWKV 4")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of an RWKV config.

    transformers halves the residual stream after every `rescale_every` blocks; here it keeps its
    size, and the epsilon of the norms grows instead.
    """
    facts = ModelFacts(hf_config)
    facts.refuse("head_size")  # RWKV 5 and 6 have heads
    hidden = facts.count("hidden_size")
    norm = facts.layer_norm("layer_norm_epsilon")
    every = facts.get("rescale_every", 6)
    time = RwkvTimeMixSpec(width=facts.count("attention_hidden_size", hidden))
    channel = RwkvChannelMixSpec(width=facts.count("intermediate_size", 4 * hidden))
    blocks = facts.num_layers()
    halved = [index // every if every > 0 else 0 for index in range(blocks + 1)]
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=facts.num_positions("context_length", 1024),
        tied_head=facts.flag("tie_word_embeddings"),
        layers=tuple(
            LayerSpec(recurrent=mixer, attention_in=replace(norm, eps=norm.eps * 4**times))
            for times in halved[:blocks]
            for mixer in (time, channel)
        ),
        embed_norm=norm,
        norm=replace(norm, eps=1e-5 * 4 ** halved[blocks]),
        names=NAMES,
    )
