"""GGUF settings that llama.cpp's converter writes for a config. Independent of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NAMES = {
    "BambaForCausalLM": "granitehybrid",
    "BloomForCausalLM": "bloom",
    "FalconForCausalLM": "falcon",
    "FalconH1ForCausalLM": "falcon-h1",
    "FalconMambaForCausalLM": "mamba",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "starcoder",
    "GPTNeoXForCausalLM": "gptneox",
    "Gemma4ForCausalLM": "gemma4",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granitehybrid",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "JambaForCausalLM": "jamba",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2moe",
    "Llama4ForCausalLM": "llama4",
    "Mamba2ForCausalLM": "mamba2",
    "MiniCPM3ForCausalLM": "minicpm3",
    "MambaForCausalLM": "mamba",
    "MptForCausalLM": "mpt",
    "NemotronForCausalLM": "nemotron",
    "NemotronHForCausalLM": "nemotron_h_moe",
    "PhiForCausalLM": "phi2",
    "PhimoeForCausalLM": "phimoe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3NextForCausalLM": "qwen3next",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "BertModel": "bert",
    "EuroBertModel": "eurobert",
    "ModernBertModel": "modern-bert",
    "NomicBertModel": "nomic-bert",
    "RobertaModel": "bert",
}


class ConverterSettings:
    """Settings of one config."""

    def __init__(self, config: dict[str, Any], arch: str | None = None) -> None:
        self.config = config
        self.name = config["architectures"][0]
        self.arch = arch or NAMES[self.name]

    def count(self, *names: str) -> int:
        """Return the first of these fields, or the length of the layer list."""
        if "num_hidden_layers" in names and "layers_block_type" in self.config:
            return len(self.config["layers_block_type"])
        return int(next(self.config[name] for name in names if self.config.get(name) is not None))

    def settings(self) -> dict[str, Any]:
        """Return settings by name without the architecture."""
        config = self.config
        layers = self.count("num_hidden_layers", "n_layer", "n_layers")
        heads = next(
            (
                config[key]
                for key in ("num_attention_heads", "n_head", "n_heads")
                if config.get(key)
            ),
            0,
        )
        hidden = self.count("hidden_size", "n_embd", "d_model")
        rope = config.get("rope_parameters") or {}
        rope = rope.get("full_attention", rope)
        fields = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
        out: dict[str, Any] = {
            "block_count": layers,
            "context_length": next((config[key] for key in fields if config.get(key)), 2**20),
            "embedding_length": hidden,
            "feed_forward_length": config.get("intermediate_size") or 4 * hidden,
            "attention.head_count": heads,
            "attention.head_count_kv": config.get("num_key_value_heads"),
            "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps")
            or config.get("norm_eps"),
            "attention.layer_norm_epsilon": next(
                (
                    config[key]
                    for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_eps")
                    if config.get(key)
                ),
                None,
            ),
            "attention.key_length": config.get("head_dim"),
            "rope.freq_base": rope.get("rope_theta"),
            "expert_count": next(
                (
                    config[key]
                    for key in ("num_experts", "num_local_experts", "n_routed_experts")
                    if config.get(key)
                ),
                None,
            ),
            "expert_used_count": config.get("num_experts_per_tok") or config.get("top_k_experts"),
            "expert_feed_forward_length": config.get("moe_intermediate_size"),
            "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        }
        return {**out, **SETTINGS.get(self.name, lambda own: {})(self)}


def _spaces(own: ConverterSettings) -> dict[str, Any]:
    config = own.config
    heads = own.count("mamba_n_heads", "mamba_num_heads", "num_heads")
    size = own.count("mamba_d_head", "mamba_head_dim", "head_dim")
    return {
        "ssm.conv_kernel": own.count("mamba_d_conv", "conv_kernel"),
        "ssm.state_size": own.count("mamba_d_state", "state_size", "ssm_state_size"),
        "ssm.group_count": own.count("mamba_n_groups", "n_groups"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * size,
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon")
        or config.get("rms_norm_eps"),
    }


def _channels(own: ConverterSettings) -> dict[str, Any]:
    config = own.config
    return {
        "ssm.conv_kernel": own.count("conv_kernel", "mamba_d_conv"),
        "ssm.state_size": own.count("state_size", "mamba_d_state"),
        "ssm.time_step_rank": own.count("time_step_rank", "mamba_dt_rank"),
        "ssm.inner_size": 2 * config["hidden_size"],
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon")
        or config.get("rms_norm_eps"),
        "ssm.dt_b_c_rms": own.name == "FalconMambaForCausalLM",
    }


def _granite(own: ConverterSettings) -> dict[str, Any]:
    config = own.config
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
        "expert_shared_feed_forward_length": config.get("shared_intermediate_size"),
    }


def _where(own: ConverterSettings, attends: Callable[[int], bool]) -> list[int]:
    kv_heads = own.config["num_key_value_heads"]
    return [kv_heads if attends(layer) else 0 for layer in range(own.config["num_hidden_layers"])]


def _listed(own: ConverterSettings) -> dict[str, Any]:
    kinds = own.config["layer_types"]
    return {"attention.head_count_kv": _where(own, lambda layer: kinds[layer] == "full_attention")}


def _delta_settings(own: ConverterSettings) -> dict[str, Any]:
    config = own.config
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "rope.dimension_count": int(
            config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 0.25)
        ),
    }


def _gemma4(own: ConverterSettings) -> dict[str, Any]:
    config = own.config
    layers = own.config["num_hidden_layers"]
    full = config["per_layer_config"]
    own_heads = next(iter(full.values()))
    shared = config["num_kv_shared_layers"]
    width = config["intermediate_size"]
    return {
        "attention.head_count_kv": [
            full.get(str(layer), config)["num_key_value_heads"] for layer in range(layers)
        ],
        "feed_forward_length": [
            width if layer < layers - shared else 2 * width for layer in range(layers)
        ],
        "attention.key_length": own_heads["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.shared_kv_layers": shared,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "rope.dimension_count": own_heads["head_dim"],
    }


def _nemotron_h(own: ConverterSettings) -> dict[str, Any]:
    config = own.config
    kinds = own.config["layers_block_type"]
    return {
        **_spaces(own),
        "attention.head_count_kv": [
            config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds
        ],
        "feed_forward_length": [
            config["moe_intermediate_size"] if kind == "moe" else 0 for kind in kinds
        ],
        "block_count": len(kinds),
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "moe_latent_size": config["moe_latent_size"],
    }


def _partial(share: str) -> Callable[[ConverterSettings], dict[str, Any]]:
    """Return the settings of heads with partial rotary dimensions."""

    def settings(own: ConverterSettings) -> dict[str, Any]:
        head = own.config["hidden_size"] // own.config["num_attention_heads"]
        return {"rope.dimension_count": int(head * own.config["rope_parameters"][share])}

    return settings


SETTINGS: Mapping[str, Callable[[ConverterSettings], dict[str, Any]]] = {
    "BambaForCausalLM": lambda own: {
        **_spaces(own),
        "attention.head_count_kv": _where(
            own, lambda layer: layer in own.config["attn_layer_indices"]
        ),
        "rope.dimension_count": own.config["hidden_size"] // own.config["num_attention_heads"] // 2,
    },
    "FalconForCausalLM": lambda own: {
        "attention.head_count_kv": own.config["num_kv_heads"],
        "feed_forward_length": own.config["ffn_hidden_size"],
    },
    "FalconH1ForCausalLM": _spaces,
    "FalconMambaForCausalLM": _channels,
    "GPTBigCodeForCausalLM": lambda own: {"attention.head_count_kv": 1},
    "GPTNeoXForCausalLM": _partial("partial_rotary_factor"),
    "Gemma4ForCausalLM": _gemma4,
    "GraniteMoeForCausalLM": _granite,
    "GraniteMoeHybridForCausalLM": lambda own: {
        **_spaces(own),
        **_granite(own),
        **_listed(own),
        "rope.scaling.finetuned": False,
    },
    "GraniteMoeSharedForCausalLM": _granite,
    "JambaForCausalLM": lambda own: {
        **_channels(own),
        "attention.head_count_kv": _where(
            own,
            lambda layer: (
                layer % own.config["attn_layer_period"] == own.config["attn_layer_offset"]
            ),
        ),
    },
    "Lfm2ForCausalLM": lambda own: {
        **_listed(own),
        "shortconv.l_cache": own.config["conv_L_cache"],
    },
    "Lfm2MoeForCausalLM": lambda own: {
        **_listed(own),
        "shortconv.l_cache": own.config["conv_L_cache"],
        "leading_dense_block_count": own.config["num_dense_layers"],
    },
    "Llama4ForCausalLM": lambda own: {
        "feed_forward_length": own.config["intermediate_size_mlp"],
        "expert_feed_forward_length": own.config["intermediate_size"],
        "interleave_moe_layer_step": own.config["interleave_moe_layer_step"],
    },
    "Mamba2ForCausalLM": _spaces,
    "MambaForCausalLM": _channels,
    "MiniCPM3ForCausalLM": lambda own: {
        "attention.key_length": own.config["qk_nope_head_dim"] + own.config["qk_rope_head_dim"],
        "attention.q_lora_rank": own.config["q_lora_rank"],
        "attention.kv_lora_rank": own.config["kv_lora_rank"],
        "rope.dimension_count": own.config["qk_rope_head_dim"],
    },
    "MptForCausalLM": lambda own: {
        "attention.clamp_kqv": own.config["attn_config"]["clip_qkv"],
        "attention.max_alibi_bias": float(own.config["attn_config"]["alibi_bias_max"]),
    },
    "NemotronForCausalLM": _partial("partial_rotary_factor"),
    "NemotronHForCausalLM": _nemotron_h,
    "PhiForCausalLM": _partial("partial_rotary_factor"),
    "PhimoeForCausalLM": lambda own: {
        "attention.sliding_window": own.config["sliding_window"],
        "rope.scaling.original_context_length": own.config["rope_parameters"][
            "original_max_position_embeddings"
        ],
        "rope.scaling.attn_factor": 1.0,
    },
    "Qwen3NextForCausalLM": _delta_settings,
    "Qwen3_5ForCausalLM": _delta_settings,
    "Qwen3_5MoeForCausalLM": _delta_settings,
    "ModernBertModel": lambda own: {
        "attention.sliding_window": own.config["local_attention"],
        "rope.freq_base_swa": own.config["rope_parameters"]["sliding_attention"]["rope_theta"],
    },
}
