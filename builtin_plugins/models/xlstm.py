"""xLSTM: an mLSTM and a gated MLP in each layer."""

from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import MLstmSpec

NAMES = WeightNames(
    embed="backbone.embeddings",
    layer="backbone.blocks.{}",
    attention_in="norm_mlstm",
    recurrent="mlstm_layer",
    mlp_in="norm_ffn",
    gate="ffn.proj_up_gate",
    up="ffn.proj_up",
    down="ffn.proj_down",
    final_norm="backbone.out_norm",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("xLSTMForCausalLM", "builtin_plugins.models.xlstm:spec", "xLSTM")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of an xLSTM config."""
    facts = ModelFacts(hf_config)
    facts.refuse("use_bias")
    if facts.get("weight_mode", "single") != "single":
        raise ModelError("weight_mode: expected 'single', as transformers makes no other weights.")
    hidden = facts.count("hidden_size", facts.get("embedding_dim"))
    heads = facts.count("num_heads", 8)
    norm = facts.norm("norm_eps")
    multiple = facts.count("ffn_round_up_to_multiple_of", 64)
    width = int(hidden * facts.number("ffn_proj_factor", 2.667) + multiple - 1) // multiple
    layer = LayerSpec(
        recurrent=MLstmSpec(
            heads=heads,
            key_size=int(hidden * facts.number("qk_dim_factor", 0.5)) // heads,
            value_size=int(hidden * facts.number("v_dim_factor", 1.0)) // heads,
            gate_softcap=facts.number("gate_soft_cap", 15.0),
            norm_eps=norm.eps,
            eps=facts.number("eps", 1e-6),
        ),
        mlp=MlpSpec(width=width * multiple),
        attention_in=norm,
        mlp_in=norm,
    )
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=facts.num_positions(default=8192),  # its config has none; it was trained so
        tied_head=facts.flag("tie_word_embeddings"),
        layers=(layer,) * facts.num_layers(),
        norm=norm if facts.flag("add_out_norm", True) else None,
        logit_softcap=facts.number("output_logit_soft_cap", 30.0),
        names=NAMES,
    )
