"""Checkpoint layouts, and broken checkpoints with one clear error block each."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.config import EngineConfig
from core.config.sections import ModelConfig
from core.errors import ModelError
from core.models.layers.loading import read_model
from core.plugin.registry import Registry
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session

Open = Callable[..., Any]


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a copy of a good Llama checkpoint that a test may break."""
    return Path(shutil.copytree(checkpoint("LlamaForCausalLM"), tmp_path / "model"))


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def same_logits(one: Any, other: Any) -> bool:
    ids = list(range(20, 40))
    return torch.equal(Session(one).step(ids), Session(other).step(ids))


# --- good ones ------------------------------------------------------------------------------------


def test_sharded_checkpoint_equals_single_file(folder: Path, open_model: Open) -> None:
    whole = open_model(folder)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, mine in parts.items():
        save_file({name: tensors[name].clone() for name in mine}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, mine in parts.items() for name in mine}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same_logits(whole, open_model(folder))


def test_tied_checkpoint_may_store_the_head(
    checkpoint: Callable[[str], Path], tmp_path: Path, open_model: Open
) -> None:
    folder = Path(shutil.copytree(checkpoint("Qwen3ForCausalLM"), tmp_path / "tied"))
    plain = open_model(folder)
    change_weights(
        folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    )
    assert same_logits(plain, open_model(folder))


def test_gpt2_names_without_prefix_are_loaded(
    checkpoint: Callable[[str], Path], tmp_path: Path, open_model: Open
) -> None:
    folder = Path(shutil.copytree(checkpoint("GPT2LMHeadModel"), tmp_path / "gpt2"))
    plain = open_model(folder)

    def as_on_the_hub(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)

    change_weights(folder, as_on_the_hub)
    assert same_logits(plain, open_model(folder))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps")
def test_matching_bfloat16_tensors_are_not_copied(tmp_path: Path, open_model: Open) -> None:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path / "bf16", torch_dtype="bfloat16")
    model = open_model(folder, dtype=torch.bfloat16)
    file = str(folder / "model.safetensors")
    lines = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(file)
    ]
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    mapped = [
        p for p in model.parameters() if any(start <= p.data_ptr() < end for start, end in spans)
    ]
    assert (
        len(mapped) >= 2 + 3 * 2
    )  # embedding and last norm; per layer two norms. What is multiplied by is packed
    assert Session(open_model(folder)).step([1, 2, 3]).isfinite().all()


def test_dummy_weights_depend_on_the_seed(folder: Path, open_model: Open) -> None:
    (folder / "model.safetensors").unlink()
    first, again, other = (open_model(folder, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    assert same_logits(first, again)
    assert not same_logits(first, other)


def test_hf_overrides_change_the_config(folder: Path, open_model: Open) -> None:
    model = open_model(folder, hf_overrides={"rope_parameters": {"factor": 2.0}})
    assert model.spec.layers[0].attention.rope.scaling.factor == 2.0
    assert model.spec.layers[0].attention.rope.scaling.original == 64


def test_config_without_architectures_uses_model_type(folder: Path, open_model: Open) -> None:
    change_config(folder, architectures=None)
    assert len(open_model(folder).spec.layers) == 3


def test_max_model_len_bounds_rotary_tables(folder: Path, open_model: Open) -> None:
    assert open_model(folder, max_model_len=32).spec.max_positions == 32


# --- broken ones ----------------------------------------------------------------------------------


def break_weights(data: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(data(path.read_bytes()))

    return damage


def header(facts: Any, data: bytes = b"") -> bytes:
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    return len(text).to_bytes(8, "little") + text + data


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: change_weights(folder, lambda tensors: tensors.__delitem__(name))


def add(name: str, *shape: int) -> Callable[[Path], None]:
    return lambda folder: change_weights(
        folder, lambda tensors: tensors.update({name: torch.ones(shape)})
    )


def config(**fields: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **fields)


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lose_a_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")


def make_integers(folder: Path) -> None:
    change_weights(
        folder, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].char()})
    )


def spoil(rows: slice) -> Callable[[Path], None]:
    return lambda folder: change_weights(
        folder, lambda t: t["model.embed_tokens.weight"][rows].fill_(float("nan"))
    )


def write(name: str, text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_text(text)

    return damage


def write_index(text: str) -> Callable[[Path], None]:
    return write("model.safetensors.index.json", text)


def write_generation(**fields: Any) -> Callable[[Path], None]:
    return write("generation_config.json", json.dumps(fields))


def block_the_pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def rope(**fields: Any) -> Callable[[Path], None]:
    return config(rope_parameters={"rope_theta": 1e4, **fields})


ONE = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
TWO = {**ONE, "y": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty file": (break_weights(lambda data: b""), "no safetensors file"),
    "cut off in the header": (break_weights(lambda data: data[:100]), "cut off inside its header"),
    "cut off in the data": (break_weights(lambda data: data[:-4]), "is cut off: tensor"),
    "huge header": (break_weights(lambda data: b"\xff" * 64), "no safetensors file"),
    "header is not JSON": (break_weights(lambda data: header(b"{nonsense")), "cannot be read"),
    "header is deep": (break_weights(lambda data: header(b"[" * 100_000)), "cannot be read"),
    "header is a list": (break_weights(lambda data: header([])), "no JSON object"),
    "entry is a number": (break_weights(lambda data: header({"x": 1})), "describes tensor 'x'"),
    "offsets outside": (
        break_weights(lambda data: header(ONE, b"1234")),
        "tensor 'x' ends at byte",
    ),
    "offsets negative": (
        break_weights(lambda d: header({"x": {**ONE["x"], "data_offsets": [-8, 0]}}, b"12345678")),
        "describes tensor 'x'",
    ),
    "shape and bytes differ": (
        break_weights(lambda d: header({"x": {**ONE["x"], "shape": [3]}}, b"12345678")),
        "its shape \\[3\\] needs 12",
    ),
    "tensors overlap": (
        break_weights(lambda d: header(TWO, b"1" * 12)),
        "tensors 'x' and 'y' the same bytes",
    ),
    "header in UTF-16": (
        break_weights(lambda d: header(json.dumps(ONE).encode("utf-16"))),
        "cannot be read",
    ),
    "dtype is a list": (
        break_weights(lambda d: header({"x": {**ONE["x"], "dtype": ["F32"]}})),
        "describes tensor 'x'",
    ),
    "a million dimensions": (
        break_weights(lambda d: header({"x": {**ONE["x"], "shape": [1 << 60] * 1_000_000}})),
        "describes tensor 'x'",
    ),
    "weights are integers": (make_integers, "lm_head.weight is stored as int8"),
    "control characters in a name": (
        add("extra\x1b[31m"),
        r"unexpected tensors: 'extra\\x1b\[31m'",
    ),
    "weights are a pipe": (block_the_pipe, "holds no \\*.safetensors file"),
    "unknown dtype": (
        break_weights(lambda d: header({"x": {**ONE["x"], "dtype": "F7"}})),
        "as 'F7'",
    ),
    "missing tensor": (drop("model.norm.weight"), "1 missing tensors: model.norm.weight"),
    "unexpected tensor": (add("model.extra.weight", 2), "1 unexpected tensors: model.extra.weight"),
    "wrong shape": (
        add("model.norm.weight", 65),
        "model.norm.weight: expected \\[64\\], found \\[65\\]",
    ),
    "only pickles": (only_pickles, "only as pytorch_model.bin, a format that can run code"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "holds no \\*.safetensors file",
    ),
    "missing shard": (lose_a_shard, "1 of 2 weight files .* are missing: model-2.safetensors"),
    "index is deep": (write_index("[" * 100_000), "index.json cannot be read as JSON"),
    "index names numbers": (write_index('{"weight_map": {"a": 5}}'), "is no index of weight files"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "config is not JSON": (
        write("config.json", "{"),
        "config.json cannot be read as JSON",
    ),
    "no architecture": (config(architectures=None, model_type="unknown"), "names no architecture"),
    "unknown architecture": (
        config(architectures=["LamaForCausalLM"]),
        "did you mean 'LlamaForCausalLM'",
    ),
    "unknown quantization": (
        config(quantization_config={"quant_method": "nune"}),
        "'nune', which no loaded plugin",
    ),
    "quantization without a method": (
        config(quantization_config={"bits": 4}),
        "expected an object with a quant_method",
    ),
    "model of several parts": (
        config(architectures=["Gemma3ForConditionalGeneration"], text_config={"hidden_size": 64}),
        "text_config: got",
    ),
    "impossible head size": (config(head_dim=15), "rotary size: got 15"),
    "head size of a billion": (
        config(head_dim=10**9),
        "head_dim in config.json is 1000000000; no model has more",
    ),
    "vocabulary of a billion billion": (
        config(vocab_size=10**18),
        "vocab_size in config.json is .*; no model has more",
    ),
    "more than the machine holds": (
        config(vocab_size=10**7, hidden_size=10**7, head_dim=16),
        "cannot be built: .* allocate",
    ),
    "no vocabulary": (
        config(vocab_size=0),
        "vocab_size in config.json is 0; it must be a positive integer",
    ),
    "fewer than no layers": (
        config(num_hidden_layers=-1),
        "num_hidden_layers in config.json is -1",
    ),
    "no head size": (config(head_dim=0), "head_dim in config.json is 0"),
    "no key-value heads": (
        config(num_key_value_heads=0),
        "num_key_value_heads in config.json is 0",
    ),
    "end token beyond the vocabulary": (
        config(eos_token_id=999_999),
        r"config.json: eos_token_id is 999999, which is no token of the vocabulary: it has \d+, "
        r"from 0",
    ),
    "one of the end tokens is beyond": (
        config(eos_token_id=[2, 999_999]),
        "eos_token_id is 999999, which is no token",
    ),
    "first token is negative": (
        config(bos_token_id=-5),
        "config.json: bos_token_id is -5, which is no token",
    ),
    "padding beyond the vocabulary": (
        config(pad_token_id=10**9),
        "config.json: pad_token_id is 1000000000, which is no",
    ),
    "end token of the generation config": (
        write_generation(eos_token_id=999_999),
        "generation_config.json: eos_token_id is 999999, which is no token",
    ),
    "weights are not numbers": (
        spoil(slice(None)),
        r"model.safetensors: tensor \S+ holds NaN or infinite numbers",
    ),
    "one row of a large weight is not": (
        spoil(slice(0, 8)),
        r"model.safetensors: tensor \S+ holds NaN or infinite",
    ),
    "one number of a norm is infinite": (
        lambda folder: change_weights(
            folder, lambda t: t["model.norm.weight"][5:6].fill_(float("inf"))
        ),
        "model.safetensors: tensor model.norm.weight holds NaN or infinite numbers",
    ),
    "a million layers": (config(num_hidden_layers=10**6), "no model has more than 1024 layers"),
    "endless context": (config(max_position_embeddings=10**13), "no model has more than"),
    "epsilon is a word": (config(rms_norm_eps="small"), "rms_norm_eps in config.json is 'small'"),
    "switch is a word": (
        config(attention_bias="yes"),
        "attention_bias in config.json is 'yes'; it must be true",
    ),
    "activation is a list": (config(hidden_act=["silu"]), "hidden_act .*'silu'.* is not known"),
    "rotary settings are a word": (
        config(rope_parameters="linear"),
        "it must be an object, or null",
    ),
    "rotary base is a word": (
        rope(rope_theta="big"),
        "config.json: rope_parameters.rope_theta is 'big'",
    ),
    "rotary base is negative": (
        rope(rope_theta=-1.0),
        "config.json: rope_parameters.rope_theta is -1.0",
    ),
    "rotary base is no number": (
        rope(rope_theta=float("nan")),
        "rope_parameters.rope_theta is nan",
    ),
    "rotary type is unknown": (
        rope(rope_type="zzz", factor=-1),
        "config.json: rope_parameters: .*'zzz' is not known",
    ),
    "rotary factor that its type does not read": (
        rope(factor=-1),
        "config.json: rope_parameters.factor is -1; it must be",
    ),
    "invalid rope settings that are not used": (
        config(
            rope_scaling={"rope_type": "zzz", "factor": -1}, rope_parameters={"rope_theta": 1e4}
        ),
        "config.json: rope_scaling: .*'zzz' is not known",
    ),
    "rotary settings of a layer type that there is not": (
        config(rope_parameters={"full_attention": {"rope_type": "linear", "factor": -1.0}}),
        "config.json: rope_parameters.full_attention.factor is -1.0",
    ),
    "rotary original length is nothing": (
        rope(rope_type="yarn", factor=2.0, original_max_position_embeddings=0),
        "config.json: rope_parameters.original_max_position_embeddings is 0",
    ),
    "rotary scaling lacks its factor": (rope(rope_type="linear"), "config.json has no 'factor'"),
    "rotary share is negative": (
        rope(partial_rotary_factor=-0.5),
        "rope_parameters.partial_rotary_factor is -0.5",
    ),
    "rotary base turns nothing": (rope(rope_theta=1), "rope_theta: got 1.0; expected more than 1"),
    "rotary factor is a word": (
        rope(rope_type="linear", factor="x"),
        "config.json: rope_parameters.factor is 'x'; it must be a positive number",
    ),
    "rotary factor is negative": (
        rope(rope_type="linear", factor=-2),
        "config.json: rope_parameters.factor is -2",
    ),
    "dynamic rotary of one pair": (
        lambda folder: change_config(
            folder, head_dim=2, rope_parameters={"rope_type": "dynamic", "factor": 2.0}
        ),
        "dynamic scaling: got .*expected at least 4",
    ),
    "rotary factors are words": (
        rope(rope_type="longrope", short_factor=["x"] * 8, long_factor=[1.0] * 8),
        "config.json: rope_parameters.short_factor is .'x'.*; it must be a list of positive "
        "numbers",
    ),
    "rotary bands are empty": (
        rope(rope_type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0),
        "high_freq_factor: got 4.0; expected more than",
    ),
    "generation config is hot": (
        write_generation(temperature="hot"),
        "generation_config.json: temperature",
    ),
    "end token is a word": (
        write_generation(eos_token_id=["x"]),
        "eos_token_id of .* it must be a token id",
    ),
    "heads do not divide": (
        config(num_attention_heads=5, head_dim=None),
        "expected a multiple of 5 attention heads",
    ),
    "context is no number": (
        config(max_position_embeddings="long"),
        "max_position_embeddings in .* is 'long'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_checkpoint_is_rejected_with_one_error_block(
    name: str, folder: Path, open_model: Open
) -> None:
    gc.collect()  # what earlier tests left must not be finalised at the bottom of a deep recursion
    damage, message = BROKEN[name]
    damage(folder)
    with pytest.raises(ModelError, match=message) as refused:
        open_model(folder)
    assert str(folder) in str(refused.value), "the block says where"


def test_invalid_config_is_rejected_before_building(folder: Path, registry: Registry) -> None:
    change_config(folder, architectures=["Unknown"])
    settings = EngineConfig(ModelConfig(str(folder)))
    source = registry.find_model(str(folder), settings)
    assert source is not None
    with pytest.raises(
        ModelError, match=r"cannot serve .*\n  no loaded plugin knows the architecture 'Unknown'"
    ):
        read_model(settings, source, registry)
