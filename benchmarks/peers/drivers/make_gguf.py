"""Converts a Qwen3 checkpoint to a GGUF file for llama.cpp. Requires `gguf` and
`llama_cpp`.

All matrices get the same type, including the embedding and head, except that llama.cpp chooses the
types of Q4_K_M. The tokenizer's vocabulary is written without its pre-tokenizer: prompts are token
ids.

Run: python make_gguf.py CHECKPOINT bf16.gguf --type BF16|Q8_0|Q4_0|Q4_K_M
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from gguf.quants import quantize

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def read_tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the bfloat16 tensors of a safetensors file as float32."""
    data = np.memmap(file, dtype=np.uint8, mode="r")
    start = 8 + int(data[:8].view(np.uint64)[0])
    for name, about in json.loads(bytes(data[8:start])).items():
        if name == "__metadata__":
            continue
        if about["dtype"] != "BF16":
            raise SystemExit(f"{file}: {name} is {about['dtype']}; only BF16 is read.")
        first, last = about["data_offsets"]
        raw = np.frombuffer(data[start + first : start + last].tobytes(), np.uint16)
        yield name, (raw.astype(np.uint32) << 16).view(np.float32).reshape(about["shape"])


def gguf_name(name: str) -> str:
    """Return the name of a tensor in llama.cpp."""
    stem = name.removesuffix(".weight")
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.weight"


def write_vocabulary(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    """Write the tokens of a byte-level BPE; further ids are unused."""
    model = json.loads((folder / "tokenizer.json").read_text())
    tokens = [f"<unused {i}>" for i in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    for token, i in model["model"]["vocab"].items():
        tokens[i] = token
        types[i] = gguf.TokenType.NORMAL
    for added in model["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(
        [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
    )


def main() -> None:
    """Write the file of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", choices=("BF16", "Q8_0", "Q4_0", "Q4_K_M"), default="BF16")
    arguments = parser.parse_args()
    if arguments.type != "Q4_K_M":
        write(arguments.checkpoint, arguments.target, arguments.type)
        return
    with tempfile.TemporaryDirectory(dir=arguments.target.parent) as folder:
        plain = Path(folder) / "bf16.gguf"
        write(arguments.checkpoint, plain, "BF16")
        quantize_file(plain, arguments.target)


def quantize_file(source: Path, target: Path) -> None:
    """Write a file as Q4_K_M by llama.cpp's own quantization."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    names = str(source).encode(), str(target).encode()
    if llama_cpp.llama_model_quantize(*names, ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not quantize {source}.")


def write(checkpoint: Path, target: Path, type_name: str) -> None:
    """Write a file with matrices of one type."""
    config = json.loads((checkpoint / "config.json").read_text())
    kind = gguf.GGMLQuantizationType[type_name]
    writer = gguf.GGUFWriter(target, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    write_vocabulary(writer, checkpoint, config["vocab_size"])
    for name, tensor in read_tensors(checkpoint / "model.safetensors"):
        if tensor.ndim == 1:  # norms are not quantized
            writer.add_tensor(gguf_name(name), tensor)
        else:
            writer.add_tensor(gguf_name(name), quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
