"""LongCat-Flash: pairs of MLA layers; experts read in the first and are added after the second."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec, MtpLayerSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.latent_facts import latent_attention
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.longcat_flash"
MTP_NAMES = WeightNames(
    gate="transformer_layer.mlp.gate_proj",
    up="transformer_layer.mlp.up_proj",
    down="transformer_layer.mlp.down_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("LongcatFlashForCausalLM", f"{HERE}:spec", "LongCat-Flash")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a LongCat-Flash config; each of its layers is two of ours."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    hidden = facts.count("hidden_size")
    rope = facts.rope(facts.count("qk_rope_head_dim"), theta=1e7, interleaved=True)
    plain = latent_attention(facts, rope=rope)
    grown = (hidden / facts.count("q_lora_rank")) ** 0.5, (hidden / plain.rank) ** 0.5
    attention = latent_attention(
        facts, rope=rope, scale=plain.scale * grown[0], latent_scale=grown[1]
    )
    experts = MoeSpec(
        experts=facts.count("n_routed_experts"),
        zero_experts=facts.count("zero_expert_num", 256, least=0),
        top_k=facts.count("moe_topk"),
        width=facts.count("expert_ffn_hidden_size"),
        activation=facts.activation(),
        renormalize=False,
        scale=facts.number("routed_scaling_factor", 6.0),
        correction_bias=True,
        router_fp32=True,
    )
    mlp = MlpSpec(width=facts.count("ffn_hidden_size"), activation=facts.activation())
    pair = tuple(
        pre_norm_layer(norm, attention=attention, mlp=mlp, delayed_moe=late)
        for late in (experts, None)
    )
    layers = pair * facts.num_layers("num_layers")
    stored = "model.mtp.layers.0"
    mtp = MtpLayerSpec(
        layer=pre_norm_layer(norm, attention=attention, mlp=mlp),
        norm=norm,
        stored=stored,
        tensors=("model.mtp.*",),
        ignored=("model.mtp.embed_tokens.*", "*.rotary_emb.inv_freq"),
        token_norm=f"{stored}.enorm.m",
        hidden_norm=f"{stored}.hnorm.m",
        product=f"{stored}.eh_proj",
        final_norm="model.mtp.norm",
        continues_normed=True,
        names=MTP_NAMES,
    )
    names = _names(experts)
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, mtp=mtp, names=names)


def _names(experts: MoeSpec) -> WeightNames:
    whole = range(experts.experts, experts.experts + experts.zero_experts)
    return WeightNames(
        layer="model.layers.{}.{}",
        layers_within=2,
        gate="mlps.gate_proj",
        up="mlps.up_proj",
        down="mlps.down_proj",
        router="mlp.router.classifier",
        correction_bias="mlp.router.e_score_correction_bias",
        rename=(
            (r"^model\.layers\.(\d+)\.(\w+)\.([01])\.", r"model.layers.\1.\3.\2."),
            (r"^model\.layers\.(\d+)\.mlp\.", r"model.layers.\1.0.mlp."),
        ),
        # Experts that give back what they read need no weights; some checkpoints have them.
        ignored=(
            "*.rotary_emb.inv_freq",
            "model.mtp.*",
            *(f"*.mlp.experts.{index}.*" for index in whole),
        ),
    )
