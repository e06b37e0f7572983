"""Models of transformers, some with replaced parts, that compute what other architectures do."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.pytorch_utils import Conv1D

from core.model_spec.attention import alibi_slopes
from core.testing.published.layout import SHAPE

# Without types: their parts are replaced by others.
llama: Any = modeling_llama
qwen3_moe: Any = modeling_qwen3_moe
conv1d: Any = Conv1D
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
}


def of_class(name: str, **fields: Any) -> Any:
    """Return a model of a class of transformers, with the tiny shape changed by `fields`."""
    config_class = name.replace("ForCausalLM", "Config").replace("LMHeadModel", "Config")
    config = getattr(transformers, config_class)(**{**SHAPE, **fields})
    config._experts_implementation = "eager"  # its grouped products take aligned sizes only
    return getattr(transformers, name)(config)


def llama_with_biases(*, after: bool, **fields: Any) -> Any:
    """Return Llama with biases in its last products only (`after`), or in all but them."""
    model = of_class("LlamaForCausalLM", attention_bias=not after, **fields)
    for layer in model.model.layers:
        out = layer.self_attn.o_proj
        layer.self_attn.o_proj = nn.Linear(out.in_features, out.out_features, bias=after)
        down = layer.mlp.down_proj
        layer.mlp.down_proj = nn.Linear(down.in_features, down.out_features, bias=after)
    return model


def llama_with_experts(*, dense_layers: int, renormalize: bool, **fields: Any) -> Any:
    """Return Llama with softmax experts and a shared one of twice their width in later layers."""
    model = of_class("LlamaForCausalLM", **fields)
    config = transformers.Qwen3MoeConfig(**{**SHAPE, **EXPERTS}, norm_topk_prob=renormalize)
    config._experts_implementation = "eager"
    for layer in model.model.layers[dense_layers:]:
        layer.mlp = _WithSharedExpert(config)
    return model


class _WithSharedExpert(qwen3_moe.Qwen3MoeSparseMoeBlock):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width = 2 * config.moe_intermediate_size
        self.shared_experts = qwen3_moe.Qwen3MoeMLP(config, intermediate_size=width)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        routed: torch.Tensor = super().forward(hidden_states)
        shared: torch.Tensor = self.shared_experts(hidden_states)
        return routed + shared


class _Absent(nn.Module):
    """A part that a layer lacks: what it adds to the residual stream is 0."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.zeros_like(hidden_states)


def llama_as_step3(latent: int) -> Any:
    """Return Llama with one key-value head, queries from a normalised latent, and experts."""
    model = llama_with_experts(
        dense_layers=1, renormalize=True, num_key_value_heads=1, rms_norm_eps=1e-5
    )
    for layer in model.model.layers:
        whole = layer.self_attn.q_proj
        layer.self_attn.q_proj = nn.Sequential(
            nn.Linear(whole.in_features, latent, bias=False),
            llama.LlamaRMSNorm(latent, 1e-5),
            nn.Linear(latent, whole.out_features, bias=False),
        )
    return model


def gemma2_as_grok() -> Any:
    """Return Gemma 2 with experts, not normalised expert weights, and a factor on logits."""
    fields = {**SHAPE, "tie_word_embeddings": True, "pad_token_id": 0}
    config = transformers.Gemma2Config(
        **fields,
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=None,
        layer_types=["full_attention"] * 3,
        rms_norm_eps=1e-5,
    )
    config._attn_implementation = "eager"
    model: Any = transformers.Gemma2ForCausalLM(config)
    experts = transformers.Qwen3MoeConfig(
        **{**SHAPE, **EXPERTS}, norm_topk_prob=False, hidden_act="gelu_pytorch_tanh"
    )
    experts._experts_implementation = "eager"
    for layer in model.model.layers:
        layer.mlp = qwen3_moe.Qwen3MoeSparseMoeBlock(experts)
    model.lm_head.register_forward_hook(lambda _, __, out: out * 0.6)
    return model


class _Plamo2Mamba(nn.Module):
    """Mamba 2 token by token, with projections to B, C and dt after the convolution.

    Written from the published model and mlx-lm's `plamo2.py` (ml-explore/mlx-lm).
    """

    def __init__(self, hidden: int, heads: int, size: int, state: int, kernel: int) -> None:
        super().__init__()
        rank = max(64, hidden // 16)
        width = heads * size
        self._sizes = (heads, size, state, rank)
        self.in_proj = nn.Linear(hidden, 2 * width, bias=False)
        self.conv1d = nn.Conv1d(width, width, kernel, groups=width, padding=kernel - 1, bias=False)
        self.bcdt_proj = nn.Linear(width, rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(rank, heads, bias=False)
        self.out_proj = nn.Linear(width, hidden, bias=False)
        self.B_norm = llama.LlamaRMSNorm(state, 1e-6)
        self.C_norm = llama.LlamaRMSNorm(state, 1e-6)
        self.dt_norm = llama.LlamaRMSNorm(rank, 1e-6)
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.D = nn.Parameter(torch.zeros(heads))

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> Any:
        heads, size, state, rank = self._sizes
        count, length = hidden_states.shape[:2]
        both = self.in_proj(hidden_states).view(count, length, heads, 2 * size)
        gate, x = both.split(size, -1)
        x = self.conv1d(x.flatten(2).transpose(1, 2))[..., :length].transpose(1, 2)
        x = nn.functional.silu(x)
        write, read, step = self.bcdt_proj(x).split([state, state, rank], -1)
        write = self.B_norm(write)
        read = self.C_norm(read)
        step = nn.functional.softplus(self.dt_proj(self.dt_norm(step)) + self.dt_bias)
        x = x.view(count, length, heads, size)
        found = torch.zeros(count, heads, size, state)
        outputs = []
        for at in range(length):
            decay = (-self.A_log.exp() * step[:, at]).exp()[..., None, None]
            added = (step[:, at, :, None] * x[:, at])[..., None] * write[:, at, None, None]
            found = found * decay + added
            outputs.append((found * read[:, at, None, None]).sum(-1))
        out = torch.stack(outputs, 1) + x * self.D[:, None]
        out = (out * nn.functional.silu(gate)).flatten(2)
        return self.out_proj(out), None


def gemma3_as_plamo2() -> Any:
    """Return Gemma 3 with one rotary base and own norms per head; the layers at odd numbers attend.

    The others have Mamba.
    """
    fields = {name: value for name, value in SHAPE.items() if name != "pad_token_id"}
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    config = transformers.Gemma3TextConfig(
        **fields,
        head_dim=16,
        hidden_activation="silu",
        query_pre_attn_scalar=16,
        layer_types=["full_attention"] * 3,
        rope_parameters={"full_attention": rope, "sliding_attention": rope},
    )
    model: Any = transformers.Gemma3ForCausalLM(config)
    model.model.embed_tokens.embed_scale = torch.tensor(1.0)
    for index, layer in enumerate(model.model.layers):
        if index % 2 == 0:
            layer.self_attn = _Plamo2Mamba(64, 4, 16, 8, 4)
        else:
            layer.self_attn.q_norm = _HeadsNorm(4, 16)
            layer.self_attn.k_norm = _HeadsNorm(2, 16)
    return model


class _HeadsNorm(nn.Module):
    """RMSNorm of each head [batch, heads, length, size] with weights of its own."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6) * self.weight[:, None]


MISTRAL_LARGE4 = {
    **{name: value for name, value in SHAPE.items() if name != "num_hidden_layers"},
    "model_type": "mistral_large4_text",
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "attention_bias": True,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-5,
    "final_logit_softcapping": 8.0,
    "index_topk": 20,
    "index_head_dim": 16,
    "index_n_heads": 11,
    "indexer_types": ["full", "shared", "full", "full", "shared", "full"],
    "no_rope_layers": [1, 0, 1, 1, 0, 1],
    "kv_source_layers": [0, 1, 0, 3, 1, 3],
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.0,
    },
}
"""Text config of a tiny Mistral Large 4; its layers share latents, indexers, both and neither."""


def mistral_large4() -> Any:
    """Return a Mistral Large 4 with the smallest tower there is."""
    tower = {"model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "patch_size": 4}
    tower |= {"num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 8}
    config: Any = transformers.MistralLarge4Config(
        text_config=deepcopy(MISTRAL_LARGE4), vision_config=tower
    )
    config._attn_implementation = "eager"
    config.text_config._experts_implementation = "eager"
    return transformers.MistralLarge4ForConditionalGeneration(config)


def deepseek_as_pangu() -> Any:
    """Return DeepSeek V3 without expert groups and bias, with norms around each part."""
    model = of_class(
        "DeepseekV3ForCausalLM",
        num_key_value_heads=4,
        kv_lora_rank=24,
        q_lora_rank=40,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=20,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        first_k_dense_replace=1,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    for layer in model.model.layers:
        for name in ("self_attn", "mlp"):
            norm = llama.LlamaRMSNorm(SHAPE["hidden_size"], 1e-5)
            setattr(layer, name, _NormedOutput(getattr(layer, name), norm))
        layer.self_attn.inner.q_a_layernorm.variance_epsilon = 1e-5
        layer.self_attn.inner.kv_a_layernorm.variance_epsilon = 1e-5
    for layer in model.model.layers[1:]:
        gate = layer.mlp.inner.gate
        del gate.e_score_correction_bias  # a buffer, which would be drawn and stored
        gate.e_score_correction_bias = torch.zeros(8)
    return model


class _AbsentAttention(nn.Module):
    def forward(self, hidden_states: torch.Tensor, **_: Any) -> Any:
        return torch.zeros_like(hidden_states), None


def llama_of_unequal_layers(kv_heads: list[int], widths: list[int]) -> Any:
    """Return Llama with key-value heads and MLP widths per layer; 0: the part is absent."""
    model = of_class("LlamaForCausalLM", num_hidden_layers=len(widths))
    for index, (count, width) in enumerate(zip(kv_heads, widths, strict=True)):
        fields = {**SHAPE, "num_key_value_heads": count or 1, "intermediate_size": width or 1}
        config = transformers.LlamaConfig(**fields)
        config._attn_implementation = model.config._attn_implementation
        layer = model.model.layers[index] = llama.LlamaDecoderLayer(config, index)
        if not count:
            layer.self_attn = _AbsentAttention()
            layer.input_layernorm = nn.Identity()
        if not width:
            layer.mlp = _Absent()
            layer.post_attention_layernorm = nn.Identity()
    return model


def attend_with_alibi(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return causal attention with ALiBi [batch, length, heads * size].

    The arguments are [batch, length, heads, size], with as many key-value heads as heads.
    """
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    slopes = torch.tensor(alibi_slopes(query.shape[1]))
    length = query.shape[2]
    offset = torch.arange(length)[None] - torch.arange(length)[:, None]
    scores = query @ key.transpose(2, 3) * scale + slopes[:, None, None] * offset
    weights = scores.masked_fill(offset > 0, float("-inf")).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2)


class _AlibiLlamaAttention(llama.LlamaAttention):  # type: ignore[misc]
    def forward(self, hidden_states: torch.Tensor, **_: Any) -> Any:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (project(hidden_states).view(shape) for project in projections)
        return self.o_proj(attend_with_alibi(query, key, value, self.scaling)), None


def llama_with_alibi(**fields: Any) -> Any:
    """Return Llama with ALiBi instead of RoPE, and as many key-value heads as heads."""
    model = of_class("LlamaForCausalLM", num_key_value_heads=4, **fields)
    for index, layer in enumerate(model.model.layers):
        layer.self_attn = _AlibiLlamaAttention(model.config, index)
    return model


class _JaisAttention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.c_attn = conv1d(3 * hidden, hidden)
        self.c_proj = conv1d(hidden, hidden)
        self._heads = heads

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        size = hidden_states.shape[-1] // self._heads
        query, key, value = (
            part.unflatten(-1, (self._heads, size))
            for part in self.c_attn(hidden_states).chunk(3, -1)
        )
        return self.c_proj(attend_with_alibi(query, key, value, 1 / size)), None


class _JaisMlp(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.c_fc = conv1d(width, hidden)
        self.c_fc2 = conv1d(width, hidden)
        self.c_proj = conv1d(hidden, width)

    def forward(self, x: torch.Tensor) -> Any:
        return self.c_proj(self.c_fc(x) * nn.functional.silu(self.c_fc2(x)))


class _NoPositions(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*positions.shape, self._width)


def gpt2_as_jais(embed_scale: float, logit_scale: float) -> Any:
    """Return GPT-2 with ALiBi, scores divided by the head size, SwiGLU and two factors."""
    shape = {"vocab_size": SHAPE["vocab_size"], "n_embd": 64, "n_layer": 3, "n_head": 4}
    model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, n_positions=512))
    for block in model.transformer.h:
        block.attn = _JaisAttention(64, 4)
        block.mlp = _JaisMlp(64, 96)
    model.transformer.wpe = _NoPositions(64)
    model.transformer.wte.register_forward_hook(lambda _, __, out: out * embed_scale)
    model.lm_head.register_forward_hook(lambda _, __, out: out * logit_scale)
    return model


def gemma3_as_plamo3() -> Any:
    """Return Gemma 3 without a factor on the embeddings, with SiLU and separate rotary bases."""
    fields = {name: value for name, value in SHAPE.items() if name != "pad_token_id"}
    config = transformers.Gemma3TextConfig(
        **fields,
        head_dim=16,
        hidden_activation="silu",
        query_pre_attn_scalar=16,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 50_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    )
    model: Any = transformers.Gemma3ForCausalLM(config)
    model.model.embed_tokens.embed_scale = torch.tensor(1.0)
    return model


class _NormedOutput(nn.Module):
    """A part of a layer, and a norm of what it returns."""

    def __init__(self, inner: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.norm = norm

    def forward(self, *given: Any, **named: Any) -> Any:
        out = self.inner(*given, **named)
        return (self.norm(out[0]), *out[1:]) if isinstance(out, tuple) else self.norm(out)


class _NormedInput(nn.Module):
    """A layer of another loop, of which the first one reads normalised hidden states."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.again = layer
        self.norm = norm

    def forward(self, hidden_states: torch.Tensor, **named: Any) -> Any:
        return self.again(self.norm(hidden_states), **named)


def llama_in_loops(times: int) -> Any:
    """Return Llama with norms after attention and MLP, and all layers run several times."""
    model = of_class("LlamaForCausalLM")
    inner = model.model
    for layer in inner.layers:
        for name in ("self_attn", "mlp"):
            norm = llama.LlamaRMSNorm(SHAPE["hidden_size"], 1e-6)
            setattr(layer, name, _NormedOutput(getattr(layer, name), norm))
    own = list(inner.layers)
    for _ in range(times - 1):
        inner.layers.extend([_NormedInput(own[0], inner.norm), *own[1:]])
    model.config.num_hidden_layers = len(inner.layers)
    return model


def llama_with_mixed_streams(sources: dict[int, int], share: float) -> Any:
    """Return Llama in which layers (keys) mix the input of earlier ones (values) into theirs."""
    model = of_class("LlamaForCausalLM", num_hidden_layers=6)
    inputs: dict[int, torch.Tensor] = {}

    def mix(index: int, hidden_states: torch.Tensor) -> torch.Tensor:
        inputs[index] = hidden_states
        if index not in sources:
            return hidden_states
        return share * inputs[sources[index]] + (1 - share) * hidden_states

    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(lambda _, given, at=index: (mix(at, given[0]), *given[1:]))
    return model


class _ArcticLayer(llama.LlamaDecoderLayer):  # type: ignore[misc]
    """Experts of the layer's input next to attention and a dense MLP."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__(config, index)
        experts = transformers.Qwen3MoeConfig(**{**SHAPE, **EXPERTS}, norm_topk_prob=True)
        experts._experts_implementation = "eager"
        self.block_sparse_moe = qwen3_moe.Qwen3MoeSparseMoeBlock(experts)
        self.residual_layernorm = llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_states: torch.Tensor, **named: Any) -> Any:
        experts: torch.Tensor = self.block_sparse_moe(self.post_attention_layernorm(hidden_states))
        attended = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)[0]
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.residual_layernorm(hidden_states)) + experts


def llama_as_arctic() -> Any:
    """Return Llama with Arctic's layers."""
    model = of_class("LlamaForCausalLM", intermediate_size=SHAPE["hidden_size"])
    for index in range(len(model.model.layers)):
        model.model.layers[index] = _ArcticLayer(model.config, index)
    return model
