"""Writes test checkpoints as GGUF files, with the gguf library and its tensor names.

Blocks are random bytes with numbers of the checkpoint's magnitude. The plain checkpoint with these
numbers is written next to the file: the file must match it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

Array = np.ndarray[Any, Any]
Kinds = Callable[[str], str]

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "GptOssForCausalLM": "gpt-oss",
    "MistralForCausalLM": "llama",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "AfmoeForCausalLM": "afmoe",
    "ArceeForCausalLM": "arcee",
    "Cohere2ForCausalLM": "cohere2",
    "CohereForCausalLM": "command-r",
    "Dots1ForCausalLM": "dots1",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
    "Exaone4ForCausalLM": "exaone4",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4moe",
    "GraniteForCausalLM": "granite",
    "HunYuanDenseV1ForCausalLM": "hunyuan-dense",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "OlmoForCausalLM": "olmo",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "OlmoeForCausalLM": "olmoe",
    "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "YoutuForCausalLM": "deepseek2",
}
PAIRED = ("llama", "arcee", "granite", "olmo", "smollm3")
"""Architectures with interleaved RoPE rows of queries and keys."""
GROUPED = {
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
SETTINGS = {
    "afmoe": {
        "leading_dense_block_count": "num_dense_layers",
        "expert_shared_count": "num_shared_experts",
        "expert_weights_scale": "route_scale",
    },
    "command-r": {"logit_scale": "logit_scale"},
    "cohere2": {"logit_scale": "logit_scale"},
    "dots1": GROUPED,
    "glm4moe": GROUPED,
    "ernie4_5-moe": {
        "expert_count": "moe_num_experts",
        "expert_used_count": "moe_k",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "moe_num_shared_experts",
        "leading_dense_block_count": "moe_layer_start_index",
        "interleave_moe_layer_step": "moe_layer_interval",
    },
    "granite": {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    "minimax-m2": {"rope.dimension_count": "rotary_dim"},
    "olmo": {"attention.clamp_kqv": "clip_qkv"},
    "olmoe": {"attention.clamp_kqv": "clip_qkv"},
    "qwen2moe": {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
}
"""Additional settings of architectures, with their config fields."""
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Offsets of the float16 scales in a block; 0 for other types."""
CODES = {
    "Q2_K": 20.0,
    "Q3_K": 60.0,
    "Q4_K": 200.0,
    "Q5_K": 400.0,
    "Q6_K": 1500.0,
    "Q8_0": 75.0,
    "Q5_0": 9.0,
    "Q5_1": 16.0,
}
"""Typical magnitude of random codes relative to the scale; 5 for other types."""
MIDDLES = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5, "Q4_1": -7.5, "Q5_1": -15.5}
"""Offset of codes in units of the scale, which centres the numbers."""
PLAIN = ("F32", "F16", "BF16")


def random_blocks(
    kind: str, shape: tuple[int, ...], size: float, random: np.random.Generator
) -> Array:
    """Return uint8 [..., bytes of a row] of numbers with magnitude `size`."""
    inputs, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = random.integers(0, 256, (*shape[:-1], shape[-1] // inputs, num_bytes), dtype=np.uint8)
    own = random.uniform(0.5, 1.5, raw.shape[:-1]) * size / CODES.get(kind, 5.0)
    for scales, at in zip(
        (own, own * MIDDLES.get(kind, 1.0)), HALVES.get(kind, (0,)), strict=False
    ):
        raw[..., at : at + 2] = scales.astype("<f2")[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def encoded(tensor: Array, kind: str, random: np.random.Generator) -> tuple[Array, Array]:
    """Return the stored bytes of a tensor, and the numbers they decode to."""
    number = gguf.GGMLQuantizationType[kind]
    if kind in PLAIN or kind.startswith(("IQ4", "TQ", "MXFP4")):
        try:
            stored = quantize(tensor, number)
        except NotImplementedError:
            stored = random_blocks(kind, tensor.shape, float(tensor.std()), random)
    else:
        stored = random_blocks(kind, tensor.shape, float(tensor.std()), random)
    return stored, dequantize(stored, number).reshape(tensor.shape).astype(np.float32)


class Converter:
    """Converts one checkpoint folder; tensors have Hugging Face names."""

    def __init__(self, folder: Path, kinds: Kinds, seed: int = 0) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.name = self.config["architectures"][0]
        self.arch = ARCHITECTURES[self.name]
        self._kinds = kinds
        self._random = np.random.default_rng(seed)
        self._folder = folder
        enum = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == self.arch)
        self._map = gguf.get_tensor_name_map(enum, self.config["num_hidden_layers"])
        self.tensors: list[tuple[str, Array, str]] = []
        self.plain: dict[str, torch.Tensor] = {}

    def convert(self, path: Path) -> Path:
        """Write the file and the plain checkpoint; return the checkpoint's folder."""
        weights = {
            name: tensor.float().numpy()
            for name, tensor in load_file(self._folder / "model.safetensors").items()
        }
        for name, tensor in _stacked(weights).items():
            self._one(name, tensor)
        self._write(path)
        target = path.with_suffix(".plain")
        target.mkdir()
        for each in self._folder.glob("*.json"):
            shutil.copy(each, target)
        save_file(
            {name: tensor.contiguous() for name, tensor in self.plain.items()},
            target / "model.safetensors",
        )
        return target

    def _gguf_name(self, name: str) -> str:
        if self.arch == "gpt-oss" and ".experts.down_proj" in name:
            suffix = "bias" if name.endswith("_bias") else "weight"
            return f"blk.{name.split('.')[2]}.ffn_down_exps.{suffix}"
        if name.endswith("sinks"):
            return f"blk.{name.split('.')[2]}.attn_sinks.weight"
        found = self._map.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
        assert found is not None, name
        return str(found)

    def _one(self, name: str, tensor: Array) -> None:
        if name.endswith("kv_b_proj.weight"):
            self._latent(name, tensor)
            return
        if ".mlp.experts.gate_up_proj" in name and self.arch == "gpt-oss":
            self._in_turn(name, tensor)
            return
        stored_name = self._gguf_name(name)
        if self.arch in PAIRED and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
            heads = self.config[
                "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            ]
            turned = (
                tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
            )
            plain = self._put(stored_name, turned)
            plain = (
                plain.reshape(heads, -1, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
            )
        elif self.arch.startswith("gemma") and name.endswith("norm.weight"):
            plain = self._put(stored_name, tensor + 1) - 1
        elif self.arch == "gpt-oss" and ".experts.down_proj" in name and tensor.ndim == 3:
            plain = self._put(stored_name, tensor.swapaxes(1, 2)).swapaxes(1, 2)
        else:
            plain = self._put(stored_name, tensor)
        if ".experts." in name and self.arch != "gpt-oss":
            before, _, leaf = name.partition(".experts.")
            for number, own in enumerate(plain):
                self.plain[f"{before}.experts.{number}.{leaf}"] = torch.from_numpy(own.copy())
        else:
            self.plain[name] = torch.from_numpy(plain.copy())

    def _latent(self, name: str, tensor: Array) -> None:
        """Store keys and values of latents separately, keys transposed, like newer files."""
        heads = self.config["num_attention_heads"]
        rank = self.config["kv_lora_rank"]
        key = self.config["qk_nope_head_dim"]
        layer = name.split(".")[2]
        split = tensor.reshape(heads, -1, rank)
        keys = self._put(f"blk.{layer}.attn_k_b.weight", split[:, :key].swapaxes(1, 2)).swapaxes(
            1, 2
        )
        values = self._put(f"blk.{layer}.attn_v_b.weight", split[:, key:])
        self.plain[name] = torch.from_numpy(np.concatenate((keys, values), 1).reshape(tensor.shape))

    def _in_turn(self, name: str, tensor: Array) -> None:
        layer = name.split(".")[2]
        ending = "bias" if name.endswith("_bias") else "weight"
        rows = tensor if ending == "bias" else tensor.swapaxes(1, 2)
        halves = [
            self._put(f"blk.{layer}.ffn_{part}_exps.{ending}", np.ascontiguousarray(rows[:, at::2]))
            for at, part in enumerate(("gate", "up"))
        ]
        both = np.stack(halves, 2).reshape(rows.shape)
        self.plain[name] = torch.from_numpy(
            (both if ending == "bias" else both.swapaxes(1, 2)).copy()
        )

    def _put(self, name: str, tensor: Array) -> Array:
        """Store a tensor; return its decoded numbers."""
        stays = tensor.ndim < 2 or "ffn_gate_inp" in name or "norm" in name or name.endswith("bias")
        kind = "F32" if stays else self._kinds(name)
        if tensor.shape[-1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]:
            kind = "F16" if tensor.shape[-1] % 32 else "Q8_0"
        stored, plain = encoded(np.ascontiguousarray(tensor, np.float32), kind, self._random)
        self.tensors.append((name, stored, kind))
        return plain

    def _write(self, path: Path) -> None:
        writer = gguf.GGUFWriter(path, self.arch)
        self._settings(writer)
        write_tokenizer(
            writer,
            json.loads((self._folder / "tokenizer.json").read_text()),
            self.config["vocab_size"],
        )
        for name, stored, kind in self.tensors:
            writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def _settings(self, writer: gguf.GGUFWriter) -> None:
        config = self.config
        heads = config["num_attention_heads"]
        head = config.get("head_dim") or config["hidden_size"] // heads
        rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta")}
        rope = rope.get("full_attention", rope)
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(heads)
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
        writer.add_rope_freq_base(rope["rope_theta"])
        if self.arch == "deepseek2":
            self._latent_settings(writer)
            return
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(head)
        writer.add_value_length(head)
        if config.get("sliding_window") and self.arch != "qwen2":
            writer.add_sliding_window(config["sliding_window"])
            if self.arch in ("afmoe", "cohere2", "exaone4", "olmo2"):
                writer.add_sliding_window_pattern(
                    [kind == "sliding_attention" for kind in config["layer_types"]]
                )
        if self.arch == "gemma2":
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        self._experts(writer)
        eps = next(
            (config[name] for name in ("layer_norm_eps", "norm_epsilon") if name in config), None
        )
        if eps is not None:
            writer.add_layer_norm_eps(eps)
        for setting, field in SETTINGS.get(self.arch, {}).items():
            value = config.get(field)
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}.get(
                type(value)
            )
            if add is not None:
                add(f"{self.arch}.{setting}", value)
        share = rope.get("partial_rotary_factor", 1.0)
        if share != 1.0:
            writer.add_rope_dimension_count(int(head * share))
        local = (config.get("rope_parameters") or {}).get("sliding_attention", {}).get("rope_theta")
        if local is not None:
            writer.add_float32(f"{self.arch}.rope.freq_base_swa", local)
        kind = rope.get("rope_type", "default")
        if kind in ("linear", "yarn"):
            writer.add_rope_scaling_type(gguf.RopeScalingType[kind.upper()])
            writer.add_rope_scaling_factor(rope["factor"])
            if kind == "yarn":
                writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        elif kind == "llama3":
            self.tensors.append(("rope_freqs.weight", llama3_factors(rope, head), "F32"))
        elif kind == "longrope":
            turned = int(head * rope.get("partial_rotary_factor", 1.0))
            writer.add_rope_dimension_count(turned)
            writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
            for length in ("long", "short"):
                factors = np.array(rope[f"{length}_factor"], np.float32)
                self.tensors.append((f"rope_factors_{length}.weight", factors, "F32"))

    def _experts(self, writer: gguf.GGUFWriter) -> None:
        config = self.config
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        experts = next((config[name] for name in names if config.get(name)), None)
        if experts:
            used = config.get("num_experts_per_tok") or config["moe_topk"]
            widths = config.get("moe_intermediate_size")
            width = widths or config["intermediate_size"]
            writer.add_expert_count(experts)
            writer.add_expert_used_count(used[0] if isinstance(used, list) else used)
            writer.add_expert_feed_forward_length(width[0] if isinstance(width, list) else width)

    def _latent_settings(self, writer: gguf.GGUFWriter) -> None:
        config = self.config
        turned = config["qk_rope_head_dim"]
        writer.add_head_count_kv(1)
        writer.add_key_length(config["kv_lora_rank"] + turned)
        writer.add_value_length(config["kv_lora_rank"])
        writer.add_key_length_mla(config["qk_nope_head_dim"] + turned)
        writer.add_value_length_mla(config["v_head_dim"])
        writer.add_rope_dimension_count(turned)
        writer.add_kv_lora_rank(config["kv_lora_rank"])
        if config.get("q_lora_rank"):
            writer.add_q_lora_rank(config["q_lora_rank"])
        if self.name == "YoutuForCausalLM":
            return
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        v3 = self.name == "DeepseekV3ForCausalLM"
        writer.add_expert_gating_func(
            gguf.ExpertGatingFuncType.SIGMOID if v3 else gguf.ExpertGatingFuncType.SOFTMAX
        )
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        rope = config["rope_parameters"]
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def _stacked(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights with stacked experts."""
    found: dict[str, Any] = {}
    for name, tensor in weights.items():
        before, dot, after = name.partition(".experts.")
        if dot and after.split(".")[0].isdigit():
            number, _, leaf = after.partition(".")
            found.setdefault(f"{before}.experts.{leaf}", {})[int(number)] = tensor
        else:
            found[name] = tensor
    return {
        name: np.stack([own[n] for n in sorted(own)]) if isinstance(own, dict) else own
        for name, own in found.items()
    }


def llama3_factors(rope: Mapping[str, Any], head: int) -> Array:
    """Return the frequency factors of each pair, as converters write them."""
    out = []
    for n in range(0, head, 2):
        frequency = 1.0 / rope["rope_theta"] ** (n / head)
        length = 2 * np.pi / frequency
        original = rope["original_max_position_embeddings"]
        low = original / rope["low_freq_factor"]
        high = original / rope["high_freq_factor"]
        if length < high:
            out.append(1.0)
        elif length > low:
            out.append(rope["factor"])
        else:
            smooth = (original / length - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, np.float32)


def write_tokenizer(writer: gguf.GGUFWriter, stated: Mapping[str, Any], size: int) -> None:
    """Write a byte-level tokenizer."""
    tokens = [f"<unused {n}>" for n in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    for token, number in stated["model"]["vocab"].items():
        tokens[number] = token
        types[number] = gguf.TokenType.NORMAL
    for added in stated["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(
        [m if isinstance(m, str) else " ".join(m) for m in stated["model"]["merges"]]
    )
    writer.add_eos_token_id(
        next(added["id"] for added in stated["added_tokens"] if added["content"] == "<|im_end|>")
    )
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    )
