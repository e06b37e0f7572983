"""Writes tiny checkpoints as GGUF files by the rules of llama.cpp's converter, for architectures whose tensors it lays out anew.

A checkpoint's matrices are rounded in place first, to numbers that Q8_0 blocks hold exactly; so whatever only moves rows is
stored in blocks without loss, all else as float32, and the file must give what the checkpoint gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from gguf_files import write_tokenizer
from safetensors.torch import load_file, save_file

Array = np.ndarray[Any, Any]
Config = Mapping[str, Any]
Q8_0 = gguf.GGMLQuantizationType.Q8_0
ACROSS = re.compile(r"\.(c_attn|c_fc|c_proj)\.weight|feed_forward\.experts\.(gate_up|down)_proj")
"""Stored [in, out] in checkpoints of GPT-2 and Llama 4."""
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")

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


def rounded(folder: Path) -> None:
    """Round the matrices of a checkpoint to what blocks of Q8_0 hold."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, tensor in weights.items():
        if tensor.ndim > 1 and "norm" not in name.lower():
            across = ACROSS.search(name) and "GPTBigCode" not in (folder / "config.json").read_text()
            own = tensor.transpose(-1, -2).contiguous() if across else tensor
            if own.shape[-1] % 32 == 0:
                plain = torch.from_numpy(dequantize(quantize(own.numpy(), Q8_0), Q8_0)).view(own.shape)
                weights[name] = (plain.transpose(-1, -2) if across else plain).contiguous()
    save_file(weights, path, metadata={"format": "pt"})


class Conversion:
    """Of one checkpoint folder."""

    def __init__(self, folder: Path, arch: str | None = None) -> None:
        self.folder = folder
        self.config = json.loads((folder / "config.json").read_text())
        self.name = self.config["architectures"][0]
        self.arch = arch or NAMES[self.name]
        enum = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == self.arch)
        layers = self.count("num_hidden_layers", "n_layer", "n_layers")
        self._map = gguf.get_tensor_name_map(enum, layers)
        self.kinds: dict[str, str] = {}
        """By tensor: how it was stored."""

    def count(self, *names: str) -> int:
        """Return the first of these fields, or of layers the length of their list."""
        if "num_hidden_layers" in names and "layers_block_type" in self.config:
            return len(self.config["layers_block_type"])
        return int(next(self.config[name] for name in names if self.config.get(name) is not None))

    def convert(self, path: Path, **changed: Any) -> Path:
        """Write the file; `changed` are settings, by their names without the architecture, None to leave one out."""
        rounded(self.folder)
        writer = gguf.GGUFWriter(path, self.arch)
        for key, value in {**self._settings(), **changed}.items():
            _add(writer, key if key.startswith("tokenizer.") else f"{self.arch}.{key}", value)
        size = self.config["vocab_size"]
        write_tokenizer(writer, json.loads((self.folder / "tokenizer.json").read_text()), size)
        for name, tensor in self._tensors():
            self._put(writer, name, np.ascontiguousarray(tensor, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _put(self, writer: gguf.GGUFWriter, name: str, tensor: Array) -> None:
        stored, kind = tensor, gguf.GGMLQuantizationType.F32
        plain = tensor.ndim < 2 or "ffn_gate_inp" in name or "norm" in name or "ssm_conv" in name
        if not plain and tensor.shape[-1] % 32 == 0:
            blocks = quantize(tensor, Q8_0)
            if np.array_equal(dequantize(blocks, Q8_0).reshape(tensor.shape), tensor):
                stored, kind = blocks, Q8_0
        self.kinds[name] = kind.name
        writer.add_tensor(name, stored, raw_dtype=kind)

    def _tensors(self) -> Iterator[tuple[str, Array]]:
        experts: dict[str, dict[int, Array]] = {}
        for name, whole in load_file(self.folder / "model.safetensors").items():
            found = EXPERT.fullmatch(name)
            if found:
                experts.setdefault(f"{found[1]}.{found[3]}", {})[int(found[2])] = whole.float().numpy()
            elif not name.endswith((".attn.bias", ".masked_bias", "position_ids")) and not _is_left_out(
                self.name, name
            ):
                yield from self._laid_out(name, whole.float().numpy())
        for name, own in experts.items():
            yield from self._laid_out(name, np.stack([own[number] for number in sorted(own)]))
        if self.arch == "gemma4":
            rope = self.config["rope_parameters"]["full_attention"]
            half = next(iter(self.config["per_layer_config"].values()))["head_dim"] // 2
            turning = int(half * rope.get("partial_rotary_factor", 1.0))
            yield "rope_freqs.weight", np.array([1.0] * turning + [1e30] * (half - turning), np.float32)
        rope = self.config.get("rope_parameters") or {}
        if rope.get("rope_type") == "longrope":
            for length in ("long", "short"):
                yield f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32)

    def _laid_out(self, name: str, tensor: Array) -> Iterator[tuple[str, Array]]:
        for own, part in _split(self, name, tensor):
            yield self._spelt(own), RULES.get(self.name, _same)(self, own, part)

    def _spelt(self, name: str) -> str:
        """Return what the converter calls a weight."""
        direct: tuple[tuple[str, str], ...] = (
            (r"router\.scale$", "ffn_gate_inp.scale"),
            (r"per_expert_scale$", "ffn_down_exps.scale"),
        )
        direct += ((r"e_score_correction_bias$|expert_bias$", "exp_probs_b.bias"),)
        for pattern, own in direct:
            if re.search(pattern, name):
                return f"blk.{_layer_of(name)}.{own}"
        for old, new in (
            (r"\.dt_bias$", ".dt_proj.bias"),
            (r"layer_scalar$", "layer_scalar.weight"),
            (r"^(roberta|bert)\.", ""),
        ):
            name = re.sub(old, new, name)
        if self.name == "NemotronHForCausalLM":
            name = re.sub(r"^model\.", "backbone.", name)
            name = re.sub(r"^backbone\.(layers\.\d+)\.mixer\.experts", r"model.\1.mlp.experts", name)
        if self.arch in ("eurobert", "modern-bert"):
            name = name.removeprefix("model.")
        if self.arch == "bloom":
            name = name.removeprefix("transformer.")
        if self.arch == "nomic-bert":
            name = name.removeprefix("nomic_bert.")
        if ".experts." in name and not name.endswith(".weight"):
            name += ".weight"
        if self.arch == "jamba" and ".experts." in name:
            name = name.replace("feed_forward", "mlp")
        if self.arch == "lfm2moe" and ".experts." in name:
            name = name.removeprefix("model.")
        found = self._map.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        return str(found)

    def _settings(self) -> dict[str, Any]:
        config = self.config
        layers = self.count("num_hidden_layers", "n_layer", "n_layers")
        heads = next((config[key] for key in ("num_attention_heads", "n_head", "n_heads") if config.get(key)), 0)
        hidden = self.count("hidden_size", "n_embd", "d_model")
        rope = config.get("rope_parameters") or {}
        rope = rope.get("full_attention", rope)
        places = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
        out: dict[str, Any] = {
            "block_count": layers,
            "context_length": next((config[key] for key in places if config.get(key)), 2**20),
            "embedding_length": hidden,
            "feed_forward_length": config.get("intermediate_size") or 4 * hidden,
            "attention.head_count": heads,
            "attention.head_count_kv": config.get("num_key_value_heads"),
            "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config.get("norm_eps"),
            "attention.layer_norm_epsilon": next(
                (config[key] for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_eps") if config.get(key)), None
            ),
            "attention.key_length": config.get("head_dim"),
            "rope.freq_base": rope.get("rope_theta"),
            "expert_count": next(
                (config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key)),
                None,
            ),
            "expert_used_count": config.get("num_experts_per_tok") or config.get("top_k_experts"),
            "expert_feed_forward_length": config.get("moe_intermediate_size"),
            "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        }
        return {**out, **SETTINGS.get(self.name, lambda own: {})(self)}


def _layer_of(name: str) -> str:
    found = re.search(r"\d+", name)
    assert found is not None, name
    return found[0]


def _is_left_out(architecture: str, name: str) -> bool:
    """Say whether llama.cpp has no use for a weight: the layer that BERT has behind its first token."""
    return architecture.endswith("Model") and "pooler." in name


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, (list, tuple)):
        writer.add_array(key, list(value))
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_float32(key, value)


def _same(own: Conversion, name: str, tensor: Array) -> Array:
    del own, name
    return tensor


def _split(own: Conversion, name: str, tensor: Array) -> Iterator[tuple[str, Array]]:
    """Yield what a weight is stored as: experts' gates and ups apart, but Gemma 4's; queries to gates of Qwen3-Next in two."""
    config = own.config
    if own.arch in ("granitemoe", "granitehybrid") and name.endswith("input_linear.weight"):
        gate, up = np.split(tensor, 2, -2)
        shared = "shared_mlp" in name
        before = name.partition("block_sparse_moe" if not shared else "shared_mlp")[0]
        prefix = f"{before}mlp.shared_experts" if shared else f"{before}mlp.experts"
        yield f"{prefix}.gate_proj.weight", gate
        yield f"{prefix}.up_proj.weight", up
    elif own.arch == "llama4" and ".experts." in name:
        turned = tensor.swapaxes(1, 2)
        if "gate_up" not in name:
            yield name, turned
            return
        gate, up = np.split(turned, 2, 1)
        yield name.replace("gate_up", "gate"), gate
        yield name.replace("gate_up", "up"), up
    elif "in_proj_qkvz" in name:
        keys, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
        wide = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
        parts = np.split(tensor.reshape(keys, -1, tensor.shape[-1]), [size, 2 * size, 2 * size + wide], 1)
        query, key, value, gate = (part.reshape(-1, tensor.shape[-1]) for part in parts)
        yield name.replace("in_proj_qkvz", "in_proj_qkv"), np.concatenate((query, key, value))
        yield name.replace("in_proj_qkvz", "in_proj_z"), gate
    else:
        yield name, tensor


def _space(own: Conversion, name: str, tensor: Array) -> Array:
    """Lay out a state space's parts: rates instead of their logarithms, columns, groups."""
    if name.endswith("A_log"):
        tensor = -np.exp(tensor)
    if "conv1d.weight" in name:
        return tensor.squeeze()
    if own.name in ("MambaForCausalLM", "FalconMambaForCausalLM", "JambaForCausalLM") or "Qwen3" in own.name:
        return tensor
    if name.endswith((".A_log", ".D")):
        return tensor[:, None]
    if re.search(r"(mixer|mamba)\.norm\.weight", name):
        return tensor.reshape(own.count("n_groups", "mamba_n_groups"), -1)
    return tensor


def _paired(own: Conversion, name: str, tensor: Array) -> Array:
    """Lay rows of queries and keys out by turning neighbours."""
    if re.search(r"self_attn\.[qk]_proj", name):
        heads = own.config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    return _space(own, name, tensor)


def _by_part(heads: str, kv_heads: str = "") -> Callable[[Conversion, str, Array], Array]:
    """Return the rule that puts all queries before all keys before all values."""

    def rule(own: Conversion, name: str, tensor: Array) -> Array:
        if "query_key_value" not in name:
            return tensor
        number = own.config[heads]
        groups = own.config.get(kv_heads) or number
        split = tensor.reshape(groups, number // groups + 2, -1, *tensor.shape[1:])
        parts = (split[:, :-2], split[:, -2:-1], split[:, -1:])
        return np.concatenate([part.reshape(-1, *tensor.shape[1:]) for part in parts])

    return rule


def _delta(own: Conversion, name: str, tensor: Array) -> Array:
    """Lay out Qwen's gated delta rule: norms with 1 added, value heads of Qwen 3.5 in turns of key heads."""
    config, tensor = own.config, _space(own, name, tensor)
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return tensor + 1
    if "shared_expert_gate" in name:
        return tensor.reshape(-1)
    if own.arch == "qwen3next" or "linear_attn" not in name or name.endswith("linear_attn.norm.weight"):
        return tensor
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    first = 2 * keys * config["linear_key_head_dim"] if re.search("in_proj_qkv|conv1d", name) else 0

    def tiled(rows: Array) -> Array:
        return rows.reshape(keys, values // keys, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    if "out_proj" in name:
        return tiled(tensor.T).T
    return np.concatenate((tensor[:first], tiled(tensor[first:])))


def _plus_one(own: Conversion, name: str, tensor: Array) -> Array:
    del own
    return tensor + 1 if name.endswith("norm.weight") else tensor


def _across(own: Conversion, name: str, tensor: Array) -> Array:
    del own
    return tensor.T if ACROSS.search(name) else tensor


def _factors(own: Conversion, name: str, tensor: Array) -> Array:
    """Multiply Falcon H1's factors into its weights."""
    config, tensor = own.config, _space(own, name, tensor)
    inner = config["attention_in_multiplier"]
    scales = {
        "down_proj": config["mlp_multipliers"][1],
        "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * inner,
        "q_proj": inner,
        "v_proj": inner,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": config["ssm_in_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    part = name.split(".")[-2]
    out = tensor * scales.get(part, 1.0)
    if part == "in_proj":
        width, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = [width, width, shared, shared, config["mamba_n_heads"]]
        out = out * np.repeat(config["ssm_multipliers"], sizes)[:, None]
    return out


def _conv(own: Conversion, name: str, tensor: Array) -> Array:
    del own
    return tensor.squeeze(1) if "conv.conv" in name else tensor


def _positions(own: Conversion, name: str, tensor: Array) -> Array:
    """Leave out the rows of RoBERTa's positions that no token has."""
    return tensor[own.config["pad_token_id"] + 1 :] if "position_embeddings" in name else tensor


RULES: Mapping[str, Callable[[Conversion, str, Array], Array]] = {
    "BambaForCausalLM": _paired,
    "BloomForCausalLM": _by_part("n_head"),
    "FalconForCausalLM": _by_part("num_attention_heads", "num_kv_heads"),
    "FalconH1ForCausalLM": _factors,
    "FalconMambaForCausalLM": _space,
    "GPT2LMHeadModel": _across,
    "GPTNeoXForCausalLM": _by_part("num_attention_heads"),
    "GraniteMoeForCausalLM": _paired,
    "GraniteMoeHybridForCausalLM": _paired,
    "GraniteMoeSharedForCausalLM": _paired,
    "JambaForCausalLM": _space,
    "Lfm2ForCausalLM": _conv,
    "LlamaForCausalLM": _paired,
    "Lfm2MoeForCausalLM": _conv,
    "Mamba2ForCausalLM": _space,
    "MambaForCausalLM": _space,
    "NemotronForCausalLM": _plus_one,
    "NemotronHForCausalLM": _space,
    "Qwen3NextForCausalLM": _delta,
    "Qwen3_5ForCausalLM": _delta,
    "Qwen3_5MoeForCausalLM": _delta,
    "RobertaModel": _positions,
}


def _spaces(own: Conversion) -> dict[str, Any]:
    config = own.config
    heads = own.count("mamba_n_heads", "mamba_num_heads", "num_heads")
    size = own.count("mamba_d_head", "mamba_head_dim", "head_dim")
    return {
        "ssm.conv_kernel": own.count("mamba_d_conv", "conv_kernel"),
        "ssm.state_size": own.count("mamba_d_state", "state_size", "ssm_state_size"),
        "ssm.group_count": own.count("mamba_n_groups", "n_groups"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * size,
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon") or config.get("rms_norm_eps"),
    }


def _channels(own: Conversion) -> dict[str, Any]:
    config = own.config
    return {
        "ssm.conv_kernel": own.count("conv_kernel", "mamba_d_conv"),
        "ssm.state_size": own.count("state_size", "mamba_d_state"),
        "ssm.time_step_rank": own.count("time_step_rank", "mamba_dt_rank"),
        "ssm.inner_size": 2 * config["hidden_size"],
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon") or config.get("rms_norm_eps"),
        "ssm.dt_b_c_rms": own.name == "FalconMambaForCausalLM",
    }


def _granite(own: Conversion) -> dict[str, Any]:
    config = own.config
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
        "expert_shared_feed_forward_length": config.get("shared_intermediate_size"),
    }


def _where(own: Conversion, attends: Callable[[int], bool]) -> list[int]:
    kv_heads = own.config["num_key_value_heads"]
    return [kv_heads if attends(layer) else 0 for layer in range(own.config["num_hidden_layers"])]


def _listed(own: Conversion) -> dict[str, Any]:
    kinds = own.config["layer_types"]
    return {"attention.head_count_kv": _where(own, lambda layer: kinds[layer] == "full_attention")}


def _delta_settings(own: Conversion) -> dict[str, Any]:
    config = own.config
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "rope.dimension_count": int(config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 0.25)),
    }


def _gemma4(own: Conversion) -> dict[str, Any]:
    config, layers = own.config, own.config["num_hidden_layers"]
    full = config["per_layer_config"]
    own_heads = next(iter(full.values()))
    shared, width = config["num_kv_shared_layers"], config["intermediate_size"]
    return {
        "attention.head_count_kv": [full.get(str(layer), config)["num_key_value_heads"] for layer in range(layers)],
        "feed_forward_length": [width if layer < layers - shared else 2 * width for layer in range(layers)],
        "attention.key_length": own_heads["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.shared_kv_layers": shared,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "rope.dimension_count": own_heads["head_dim"],
    }


def _nemotron_h(own: Conversion) -> dict[str, Any]:
    config, kinds = own.config, own.config["layers_block_type"]
    return {
        **_spaces(own),
        "attention.head_count_kv": [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds],
        "feed_forward_length": [config["moe_intermediate_size"] if kind == "moe" else 0 for kind in kinds],
        "block_count": len(kinds),
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "moe_latent_size": config["moe_latent_size"],
    }


def _partial(share: str) -> Callable[[Conversion], dict[str, Any]]:
    """Return the settings of heads a part of which turns."""

    def settings(own: Conversion) -> dict[str, Any]:
        head = own.config["hidden_size"] // own.config["num_attention_heads"]
        return {"rope.dimension_count": int(head * own.config["rope_parameters"][share])}

    return settings


SETTINGS: Mapping[str, Callable[[Conversion], dict[str, Any]]] = {
    "BambaForCausalLM": lambda own: {
        **_spaces(own),
        "attention.head_count_kv": _where(own, lambda layer: layer in own.config["attn_layer_indices"]),
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
            own, lambda layer: layer % own.config["attn_layer_period"] == own.config["attn_layer_offset"]
        ),
    },
    "Lfm2ForCausalLM": lambda own: {**_listed(own), "shortconv.l_cache": own.config["conv_L_cache"]},
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
        "rope.scaling.original_context_length": own.config["rope_parameters"]["original_max_position_embeddings"],
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
