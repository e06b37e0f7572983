"""Where a checkpoint keeps each part of a decoder, as facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Where the checkpoint keeps each part; the defaults are what most models use.

    Prefixes, without `.weight`.
    """

    embed: str = "model.embed_tokens"
    embed_norm: str = ""
    embed_in: str = ""
    """The product after an embedding of another width than the layers'."""
    embed_out: str = ""
    """The product before the head, back to that width."""
    frames: str = ""
    """The convolutions of an encoder that reads features: with `{}` for 1 and 2."""
    positions: str = ""
    token_types: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    final_bias: str = ""
    """A row [1, vocab] that is added to the logits, where the checkpoint has one."""
    layer: str = "model.layers.{}"
    layers_within: int = 1
    """So many layers are one of the checkpoint's: `layer` has a second `{}` for the place within.
    """
    attention_in: str = "input_layernorm"
    attention_out: str = ""
    mlp_in: str = "post_attention_layernorm"
    mlp_out: str = ""
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    qkv: str = ""
    """Set when the checkpoint keeps query, key and value in one tensor."""
    qkv_grouped: bool = False
    """The rows of `qkv` go by key-value head (its queries, its key, its value) instead of all
    queries first.
    """
    qkv_heads: tuple[int, ...] = ()
    """Which head of the tensor `qkv` is our first, second, ...: queries, keys, values.

    Empty: in this order.
    """
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    """With `{}` for the head where each head's own weights are tensors of their own."""
    query_latent: str = "self_attn.q_a_proj"
    query_latent_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    latent: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    latent_up: str = "self_attn.kv_b_proj"
    attention_gate: str = "self_attn.gate_proj"
    """Empty when each head's rows of `q` are its query's, then its gate's."""
    attention_inner: str = "self_attn.attn_sub_norm"
    sinks: str = "self_attn.sinks"
    recurrent: str = "mixer"
    """Of a recurrent part, whose own parts have the names that all checkpoints give them."""
    relative: str = "{}.self_attn.relative_attention_bias"
    """The numbers by distance, with `{}` for the layer's prefix; without it all layers share them.
    """
    cross_in: str = "encoder_attn_layer_norm"
    cross_out: str = "encoder_attn_layer_norm"
    cross_q: str = "encoder_attn.q_proj"
    cross_k: str = "encoder_attn.k_proj"
    cross_v: str = "encoder_attn.v_proj"
    cross_o: str = "encoder_attn.out_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    gate_up: str = ""
    """Set when the checkpoint keeps gate and up in one tensor."""
    up_first: bool = False
    """That tensor keeps up before gate."""
    mlp_inner: str = "mlp.ffn_sub_norm"
    activation: str = "mlp.act_fn"
    """Where the parameters of an activation are that has some."""
    router: str = "mlp.gate"
    choice_bias: str = "mlp.gate.e_score_correction_bias"
    choice_bias_row: bool = False
    """It is stored as [1, experts]."""
    expert: str = "mlp.experts.{}"
    """Empty when the checkpoint keeps all experts' weights in one tensor only."""
    expert_gate: str = "gate_proj"
    expert_up: str = "up_proj"
    expert_down: str = "down_proj"
    expert_gate_up: str = ""
    """Set when an expert's gate and up are one tensor, too, where a checkpoint keeps single
    experts; those of all in one are usual.
    """
    experts_gate_up: str = "mlp.experts.gate_up_proj"
    experts_down: str = "mlp.experts.down_proj"
    """All experts' weights in one tensor: taken instead of each expert's own where a checkpoint has
    it.
    """
    experts_layout: Literal["rows", "columns", "interleaved", "stacked"] = "rows"
    """How plain ones are stored: [experts, out, in]; [experts, in, out]; so with gate and up in
    turn;
    [experts * width, hidden] for each of gate, up (named by `experts_up`) and down."""
    experts_up: str = ""
    latent_in: str = "mixer.fc1_latent_proj"
    latent_out: str = "mixer.fc2_latent_proj"
    expert_scale: str = "router.per_expert_scale"
    router_norm: str = "router.norm"
    beside_in: str = "pre_feedforward_layernorm_2"
    beside_out: str = "post_feedforward_layernorm_2"
    beside_mlp: str = "post_feedforward_layernorm_1"
    layer_scale: str = "layer_scalar"
    layer_embed: str = "model.embed_tokens_per_layer"
    layer_project: str = "model.per_layer_model_projection"
    layer_project_norm: str = "model.per_layer_projection_norm"
    layer_gate: str = "per_layer_input_gate"
    layer_out: str = "per_layer_projection"
    layer_out_norm: str = "post_per_layer_input_norm"
    shared_gate: str = "mlp.shared_experts.gate_proj"
    shared_up: str = "mlp.shared_experts.up_proj"
    shared_down: str = "mlp.shared_experts.down_proj"
    shared_gate_up: str = ""
    shared_share: str = "mlp.shared_expert_gate"
    transposed: bool = False
    """Weights of the layers' linear parts are stored [in, out]."""
    rename: tuple[tuple[str, str], ...] = ()
    """Regular expression and replacement, applied to each tensor's name before it is looked up."""
    ignored: tuple[str, ...] = ("*.rotary_emb.inv_freq",)
    """Patterns of tensors that are not weights."""

    def of_layer(self, index: int) -> str:
        """Return the prefix of a layer."""
        return self.layer.format(*divmod(index, self.layers_within))
