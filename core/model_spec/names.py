"""Tensor names of a checkpoint as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Checkpoint prefixes of a model's parts, without `.weight`. The defaults are Llama's names."""

    embed: str = "model.embed_tokens"
    embed_norm: str = ""
    embed_in: str = ""
    """Projection from the embedding width to the hidden size."""
    embed_out: str = ""
    """Projection from the hidden size to the embedding width, before the head."""
    frames: str = ""
    """Convolutions of an audio encoder, with `{}` for 1 and 2."""
    positions: str = ""
    token_types: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    final_bias: str = ""
    """Optional logits bias [1, vocab]."""
    layer: str = "model.layers.{}"
    layers_within: int = 1
    """Layers per checkpoint layer; above 1, `layer` has a second `{}` for the index within."""
    attention_in: str = "input_layernorm"
    attention_out: str = ""
    mlp_in: str = "post_attention_layernorm"
    mlp_out: str = ""
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    """Value projection; the same name as `k`: one tensor with the key and the value of each head.
    """
    o: str = "self_attn.o_proj"
    qkv: str = ""
    """Fused query, key and value; empty: separate tensors."""
    qkv_grouped: bool = False
    """Whether the rows of `qkv` are grouped by KV head: its queries, its key, its value."""
    qkv_heads: tuple[int, ...] = ()
    """Order of the heads in `qkv`: indices of the queries, keys and values; empty: that order."""
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    """Key norm, with `{}` for the head if each head has its own tensor."""
    query_latent: str = "self_attn.q_a_proj"
    query_latent_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    latent: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    shared_key_norm: str = "self_attn.k_rope_only_layernorm"
    latent_up: str = "self_attn.kv_b_proj"
    indexer: str = "self_attn.indexer"
    compressed: str = "attn"
    """Compressed attention; the names within it are the same in all checkpoints."""
    convolved: str = "self_attn"
    """Attention with convolutions; the names within it are the same in all checkpoints."""
    router_mlp: str = "mlp.gate"
    """Router that is an MLP; the names within it are the same in all checkpoints."""
    attention_sum: str = "post_attention_residual_scale"
    """Addends and factors of the sum of the residual stream and attention."""
    mlp_sum: str = "post_mlp_residual_scale"
    hyper_attention: str = "hc_attn"
    """Weights of the residual streams around attention, before `_fn`, `_base` and `_scale`."""
    hyper_mlp: str = "hc_ffn"
    hyper_head: str = "model.hc_head"
    ngrams: str = "ple"
    """Embeddings of n-grams; the names within it are the same in all checkpoints."""
    """Weights of the residual streams after the last layer, in the same way."""
    final_streams: str = "model.llm.attn_res.output_query"
    """Query of the residual streams of blocks, after the last layer."""
    attention_gate: str = "self_attn.gate_proj"
    """Output gate; empty: each head's rows of `q` are its query, then its gate."""
    attention_inner: str = "self_attn.attn_sub_norm"
    log_scaling: str = "self_attn.softmax_scaling"
    """Learned scaling of queries by position, before `.scale` and `.bias`."""
    rope_factors: str = "model.rotary_emb.alpha"
    """Logarithms of the learned factors of rotary frequencies; a whole name."""
    sinks: str = "self_attn.sinks"
    recurrent: str = "mixer"
    """Recurrent part; the names within it are the same in all checkpoints."""
    relative: str = "{}.self_attn.relative_attention_bias"
    """Relative position bias, with `{}` for the layer's prefix; without `{}`: shared by the layers.
    """
    cross_in: str = "encoder_attn_layer_norm"
    cross_out: str = "encoder_attn_layer_norm"
    cross_q: str = "encoder_attn.q_proj"
    cross_k: str = "encoder_attn.k_proj"
    cross_v: str = "encoder_attn.v_proj"
    cross_o: str = "encoder_attn.out_proj"
    cross_q_norm: str = ""
    cross_k_norm: str = ""
    cross_gate: str = ""
    """Gate of the output of cross attention."""
    cross_mlp_gate: str = ""
    """Gate of the MLP's output in a layer with cross attention."""
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    gate_up: str = ""
    """Fused gate and up; empty: separate tensors."""
    up_first: bool = False
    """Whether `gate_up` stores up before gate."""
    mlp_inner: str = "mlp.ffn_sub_norm"
    activation: str = "mlp.act_fn"
    """Parameters of the activation, if it has any."""
    router: str = "mlp.gate"
    correction_bias: str = "mlp.gate.e_score_correction_bias"
    router_scale: str = "mlp.gate.global_scale"
    """Learned scalar of all expert weights."""
    mlp_scale: str = "mlp.global_scale"
    hashed_experts: str = "mlp.gate.tid2eid"
    """Table with the experts of each token id."""
    correction_bias_row: bool = False
    """Whether `correction_bias` is stored as [1, experts]."""
    expert: str = "mlp.experts.{}"
    """One expert, with `{}` for its index; empty: experts are stored stacked only."""
    expert_gate: str = "gate_proj"
    expert_up: str = "up_proj"
    expert_down: str = "down_proj"
    expert_gate_up: str = ""
    """Fused gate and up of one expert; empty: separate tensors."""
    experts_gate_up: str = "mlp.experts.gate_up_proj"
    experts_down: str = "mlp.experts.down_proj"
    """Down projection of all experts in one tensor; used if the checkpoint has it."""
    experts_layout: Literal[
        "rows", "columns", "either", "interleaved", "interleaved_rows", "stacked", "apart"
    ] = "rows"
    """Layout of stacked expert weights.

    "rows": [experts, out, in]; "columns": [experts, in, out]; "either": rows, or columns where the
    shape is theirs; "interleaved": columns with gate and up interleaved; "interleaved_rows":
    rows with both interleaved; "stacked": [experts * width, hidden] for gate, up (`experts_up`)
    and down; "apart": rows, and a tensor of its own for up.
    """
    experts_up: str = ""
    latent_in: str = "mixer.fc1_latent_proj"
    latent_out: str = "mixer.fc2_latent_proj"
    expert_scale: str = "router.per_expert_scale"
    router_norm: str = "router.norm"
    moe_norm_in: str = "pre_feedforward_layernorm_2"
    moe_norm_out: str = "post_feedforward_layernorm_2"
    mlp_norm_out: str = "post_feedforward_layernorm_1"
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
    shared_expert_gate: str = "mlp.shared_expert_gate"
    transposed: bool = False
    """Whether linear weights of layers are stored as [in, out]."""
    rename: tuple[tuple[str, str], ...] = ()
    """Renames: regular expression and replacement, applied to each tensor name before the lookup.
    """
    ignored: tuple[str, ...] = ("*.rotary_emb.inv_freq",)
    """Patterns of ignored tensors."""

    @property
    def base(self) -> str:
        """First component of the embedding's, layers' and final norm's names, if they share one."""
        own = {name.partition(".")[0] for name in (self.embed, self.layer, self.final_norm) if name}
        nested = all("." in name for name in (self.embed, self.layer))
        return f"{own.pop()}." if nested and len(own) == 1 else ""

    def layer_prefix(self, index: int) -> str:
        """Return the prefix of layer `index`."""
        return self.layer.format(*divmod(index, self.layers_within))
