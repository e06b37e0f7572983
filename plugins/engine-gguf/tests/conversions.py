"""Writes tiny checkpoints as GGUF files by the rules of llama.cpp's converter.

A checkpoint's matrices are first rounded to numbers that Q8_0 blocks hold exactly. Rows that are
only moved are then stored in blocks without loss, all else as float32, and the file must match the
checkpoint.
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
from file_settings import ConverterSettings
from gguf.quants import dequantize, quantize
from gguf_files import write_tokenizer
from safetensors.torch import load_file, save_file

Array = np.ndarray[Any, Any]
Q8_0 = gguf.GGMLQuantizationType.Q8_0
ACROSS = re.compile(r"\.(c_attn|c_fc|c_proj)\.weight|feed_forward\.experts\.(gate_up|down)_proj")
"""Weights stored as [in, out] in checkpoints of GPT-2 and Llama 4."""
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


def rounded(folder: Path) -> None:
    """Round the matrices of a checkpoint to Q8_0 numbers."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, tensor in weights.items():
        if tensor.ndim > 1 and "norm" not in name.lower():
            across = (
                ACROSS.search(name) and "GPTBigCode" not in (folder / "config.json").read_text()
            )
            own = tensor.transpose(-1, -2).contiguous() if across else tensor
            if own.shape[-1] % 32 == 0:
                plain = torch.from_numpy(dequantize(quantize(own.numpy(), Q8_0), Q8_0)).view(
                    own.shape
                )
                weights[name] = (plain.transpose(-1, -2) if across else plain).contiguous()
    save_file(weights, path, metadata={"format": "pt"})


class Conversion(ConverterSettings):
    """Converts one checkpoint folder."""

    def __init__(self, folder: Path, arch: str | None = None) -> None:
        super().__init__(json.loads((folder / "config.json").read_text()), arch)
        self.folder = folder
        enum = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == self.arch)
        layers = self.count("num_hidden_layers", "n_layer", "n_layers")
        self._map = gguf.get_tensor_name_map(enum, layers)
        self.kinds: dict[str, str] = {}
        """Tensor type of each stored tensor."""

    def convert(self, path: Path, **changed: Any) -> Path:
        """Write the file; `changed` are settings by short name, None to omit one."""
        rounded(self.folder)
        writer = gguf.GGUFWriter(path, self.arch)
        for key, value in {**self.settings(), **changed}.items():
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
        stored = tensor
        kind = gguf.GGMLQuantizationType.F32
        plain = tensor.ndim < 2 or "ffn_gate_inp" in name or "norm" in name or "ssm_conv" in name
        if not plain and tensor.shape[-1] % 32 == 0:
            blocks = quantize(tensor, Q8_0)
            if np.array_equal(dequantize(blocks, Q8_0).reshape(tensor.shape), tensor):
                stored = blocks
                kind = Q8_0
        self.kinds[name] = kind.name
        writer.add_tensor(name, stored, raw_dtype=kind)

    def _tensors(self) -> Iterator[tuple[str, Array]]:
        experts: dict[str, dict[int, Array]] = {}
        for name, whole in load_file(self.folder / "model.safetensors").items():
            found = EXPERT.fullmatch(name)
            if found:
                experts.setdefault(f"{found[1]}.{found[3]}", {})[int(found[2])] = (
                    whole.float().numpy()
                )
            elif not name.endswith(
                (".attn.bias", ".masked_bias", "position_ids")
            ) and not _is_left_out(self.name, name):
                yield from self._laid_out(name, whole.float().numpy())
        for name, own in experts.items():
            yield from self._laid_out(name, np.stack([own[number] for number in sorted(own)]))
        if self.arch == "gemma4":
            rope = self.config["rope_parameters"]["full_attention"]
            half = next(iter(self.config["per_layer_config"].values()))["head_dim"] // 2
            turning = int(half * rope.get("partial_rotary_factor", 1.0))
            yield (
                "rope_freqs.weight",
                np.array([1.0] * turning + [1e30] * (half - turning), np.float32),
            )
        rope = self.config.get("rope_parameters") or {}
        if rope.get("rope_type") == "longrope":
            for length in ("long", "short"):
                yield (
                    f"rope_factors_{length}.weight",
                    np.array(rope[f"{length}_factor"], np.float32),
                )

    def _laid_out(self, name: str, tensor: Array) -> Iterator[tuple[str, Array]]:
        for own, part in _split(self, name, tensor):
            yield self._spelt(own), RULES.get(self.name, _same)(self, own, part)

    def _spelt(self, name: str) -> str:
        """Return the converter's name of a weight."""
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
            name = re.sub(
                r"^backbone\.(layers\.\d+)\.mixer\.experts", r"model.\1.mlp.experts", name
            )
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


def _layer_of(name: str) -> str:
    found = re.search(r"\d+", name)
    assert found is not None, name
    return found[0]


def _is_left_out(architecture: str, name: str) -> bool:
    """Return whether llama.cpp drops a weight: BERT's pooler."""
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
    """Yield the stored tensors of a weight, such as experts' gate and up apart."""
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
        keys = config["linear_num_key_heads"]
        size = config["linear_key_head_dim"]
        wide = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
        parts = np.split(
            tensor.reshape(keys, -1, tensor.shape[-1]), [size, 2 * size, 2 * size + wide], 1
        )
        query, key, value, gate = (part.reshape(-1, tensor.shape[-1]) for part in parts)
        yield name.replace("in_proj_qkvz", "in_proj_qkv"), np.concatenate((query, key, value))
        yield name.replace("in_proj_qkvz", "in_proj_z"), gate
    else:
        yield name, tensor


def _space(own: Conversion, name: str, tensor: Array) -> Array:
    """Transform a state space's parts: negated exponentials of A_log, column vectors, groups."""
    if name.endswith("A_log"):
        tensor = -np.exp(tensor)
    if "conv1d.weight" in name:
        return tensor.squeeze()
    if (
        own.name in ("MambaForCausalLM", "FalconMambaForCausalLM", "JambaForCausalLM")
        or "Qwen3" in own.name
    ):
        return tensor
    if name.endswith((".A_log", ".D")):
        return tensor[:, None]
    if re.search(r"(mixer|mamba)\.norm\.weight", name):
        return tensor.reshape(own.count("n_groups", "mamba_n_groups"), -1)
    return tensor


def _paired(own: Conversion, name: str, tensor: Array) -> Array:
    """Interleave the RoPE halves of query and key rows."""
    if re.search(r"self_attn\.[qk]_proj", name):
        heads = own.config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    return _space(own, name, tensor)


def _by_part(heads: str, kv_heads: str = "") -> Callable[[Conversion, str, Array], Array]:
    """Return the rule that orders all queries, then all keys, then all values."""

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
    """Transform Qwen's gated delta rule: norms plus 1, value heads interleaved by key head."""
    config = own.config
    tensor = _space(own, name, tensor)
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return tensor + 1
    if "shared_expert_gate" in name:
        return tensor.reshape(-1)
    if (
        own.arch == "qwen3next"
        or "linear_attn" not in name
        or name.endswith("linear_attn.norm.weight")
    ):
        return tensor
    keys = config["linear_num_key_heads"]
    values = config["linear_num_value_heads"]
    first = 2 * keys * config["linear_key_head_dim"] if re.search("in_proj_qkv|conv1d", name) else 0

    def tiled(rows: Array) -> Array:
        return (
            rows.reshape(keys, values // keys, -1, *rows.shape[1:])
            .swapaxes(0, 1)
            .reshape(rows.shape)
        )

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
    """Fold Falcon H1's multipliers into its weights."""
    config = own.config
    tensor = _space(own, name, tensor)
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
        width = config["mamba_d_ssm"]
        shared = config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = [width, width, shared, shared, config["mamba_n_heads"]]
        out = out * np.repeat(config["ssm_multipliers"], sizes)[:, None]
    return out


def _conv(own: Conversion, name: str, tensor: Array) -> Array:
    del own
    return tensor.squeeze(1) if "conv.conv" in name else tensor


def _positions(own: Conversion, name: str, tensor: Array) -> Array:
    """Drop the unused position rows of RoBERTa."""
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
