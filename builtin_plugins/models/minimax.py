"""MiniMax Text 01: lightning and full attention, experts; norms apply to the residual stream."""

from dataclasses import replace

from builtin_plugins.models.mistral import MIXTRAL_NAMES
from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.layer import pre_norm_layer
from core.model_spec.recurrent import LightningSpec

HERE = "builtin_plugins.models.minimax"
DECAYS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
NAMES = replace(
    MIXTRAL_NAMES,
    recurrent="self_attn",
    # They follow from the sizes.
    ignored=("*.rotary_emb.inv_freq", *(f"*.self_attn.{name}" for name in DECAYS)),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("MiniMaxForCausalLM", f"{HERE}:spec", "MiniMax Text 01"),
        Entry("MiniMaxText01ForCausalLM", f"{HERE}:text01", "MiniMax Text 01, as published"),
        Entry("MiniMaxM1ForCausalLM", f"{HERE}:text01", "MiniMax M1"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a MiniMax config; decay is slower in later layers."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    heads = facts.heads()
    num_layers = facts.num_layers()
    rope = facts.rope(heads["head_size"], theta=1e6)
    window = facts.window()
    attention = facts.attention(**heads, rope=rope, window=window)
    experts = facts.moe("intermediate_size", defaults=(None, 2))

    def lightning(index: int) -> LightningSpec:
        slow = 1 - index / (num_layers - 1 + 1e-5) + 1e-5
        rates = tuple(
            slow * 2 ** (-8 * (head + 1) / heads["heads"]) for head in range(heads["heads"])
        )
        return LightningSpec(
            heads=heads["heads"],
            head_size=heads["head_size"],
            rates=rates,
            activation=facts.activation(),
        )

    def factors(part: str) -> tuple[float, float]:
        return facts.number(f"{part}_alpha_factor", 1), facts.number(f"{part}_beta_factor", 1)

    kinds = facts.layer_kinds("full_attention", "linear_attention")
    if kinds is None:
        kinds = ["linear_attention" if i % 2 else "full_attention" for i in range(num_layers)]
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=attention if kind == "full_attention" else None,
            recurrent=lightning(i) if kind == "linear_attention" else None,
            mlp=experts,
            normed_residual=(
                factors("full_attn" if kind == "full_attention" else "linear_attn"),
                factors("mlp"),
            ),
        )
        for i, kind in enumerate(kinds)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)


def text01(hf_config: object) -> DecoderSpec:
    """Return the facts of a config of the published MiniMax Text 01 and M1."""
    facts = ModelFacts(hf_config)
    facts.refuse("shared_intermediate_size")
    if not facts.flag("postnorm"):
        raise ModelError("postnorm: got false; expected true. Restore the model's config.json.")
    kinds = ("linear_attention", "full_attention")
    fields = {
        f"{new}_{factor}_factor": facts.number(f"layernorm_{old}_{factor}", 1.0)
        for new, old in (
            ("full_attn", "full_attention"),
            ("linear_attn", "linear_attention"),
            ("mlp", "mlp"),
        )
        for factor in ("alpha", "beta")
    }
    size = facts.heads()["head_size"]
    fields["partial_rotary_factor"] = facts.count("rotary_dim", size) / size
    layer_types = [kinds[int(kind)] for kind in facts.required("attn_type_list")]
    return spec(with_fields(hf_config, **fields, layer_types=layer_types))
