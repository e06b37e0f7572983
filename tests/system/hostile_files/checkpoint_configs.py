"""config.json: types, sizes, nesting and names that no model has."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.system.hostile_files.hostile_file import (
    HostileFile,
    Write,
    binary,
    edit_json,
    fields,
    text,
)

FILE: Final = "config.json"
KIND: Final = "checkpoint config"
change = partial(fields, FILE)
HUGE: Final = 2**63
DEEP: Final = 100_000


def rope(**parameters: Any) -> Write:
    """Return a writer of rotary settings."""
    return change(rope_parameters={"rope_theta": 1e4, **parameters})


def drop(*names: str) -> Write:
    """Return a writer that removes fields."""

    def write(folder: Path) -> None:
        path = folder / FILE
        stated = json.loads(path.read_text())
        for name in names:
            del stated[name]
        path.write_text(json.dumps(stated))

    return write


def spliced(fragment: str) -> Write:
    """Return a writer that puts raw JSON text before the first field."""

    def write(folder: Path) -> None:
        path = folder / FILE
        path.write_text("{" + fragment + "," + path.read_text().lstrip()[1:])

    return write


def fifo(folder: Path) -> None:
    """Put a FIFO in place of the file."""
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)


def directory(folder: Path) -> None:
    """Put a directory in place of the file."""
    (folder / FILE).unlink()
    (folder / FILE).mkdir()


def link_to(target: str) -> Write:
    """Return a writer of a link in place of the file."""

    def write(folder: Path) -> None:
        (folder / FILE).unlink()
        (folder / FILE).symlink_to(target)

    return write


def sparse(folder: Path) -> None:
    """Make a file of 64 GiB that takes no space."""
    with (folder / FILE).open("r+b") as file:
        file.truncate(64 << 30)


def wide(folder: Path) -> None:
    """Add 300,000 unknown fields."""
    edit_json(folder, FILE, **{f"field_{number}": number for number in range(300_000)})


WRITERS: Final[dict[str, tuple[Write, str | None]]] = {
    "layers 2^63": (change(num_hidden_layers=HUGE), "num_hidden_layers"),
    "layers 10^9": (change(num_hidden_layers=10**9), "num_hidden_layers"),
    "layers negative": (change(num_hidden_layers=-1), "num_hidden_layers"),
    "layers a text": (change(num_hidden_layers="2"), "num_hidden_layers"),
    "layers a float": (change(num_hidden_layers=2.5), "num_hidden_layers"),
    "layers NaN": (spliced('"num_hidden_layers_": NaN'), None),
    "layers a list": (change(num_hidden_layers=[2]), "num_hidden_layers"),
    "layers true": (change(num_hidden_layers=True), "num_hidden_layers"),
    "layers of 10,000": (change(num_hidden_layers=10_000), "num_hidden_layers"),
    "layers of 1,000 without weights": (change(num_hidden_layers=1000), "missing tensors"),
    "hidden size 2^63": (change(hidden_size=HUGE), "hidden_size"),
    "hidden size 2^24": (change(hidden_size=1 << 24), "config.json|found"),
    "hidden size 0": (change(hidden_size=0), "hidden_size"),
    "hidden size a text": (change(hidden_size="32"), "hidden_size"),
    "heads 2^63": (change(num_attention_heads=HUGE), "num_attention_heads"),
    "heads 0": (change(num_attention_heads=0), "num_attention_heads"),
    "heads negative": (change(num_attention_heads=-4), "num_attention_heads"),
    "kv heads more than heads": (change(num_key_value_heads=64), "key_value_heads|kv_heads"),
    "kv heads 2^40": (change(num_key_value_heads=2**40), "num_key_value_heads"),
    "head size 10^9": (change(head_dim=10**9), "head_dim"),
    "head size 2^24": (change(head_dim=1 << 24), "found|cannot be built|rotary"),
    "intermediate size 2^63": (change(intermediate_size=HUGE), "intermediate_size"),
    "intermediate size 2^24": (change(intermediate_size=1 << 24), "found|cannot be built"),
    "vocabulary 2^63": (change(vocab_size=HUGE), "vocab_size"),
    "vocabulary 2^24": (change(vocab_size=1 << 24), "found|cannot be built"),
    "vocabulary 1": (change(vocab_size=1), "vocabulary|tokens|token"),
    "vocabulary null": (change(vocab_size=None), "vocab_size"),
    "positions 2^63": (change(max_position_embeddings=HUGE), "max_position_embeddings"),
    "positions 10^9": (change(max_position_embeddings=10**9), "no model has more"),
    "positions negative": (change(max_position_embeddings=-5), "max_position_embeddings"),
    "positions infinite": (
        change(max_position_embeddings=float("inf")),
        "max_position_embeddings",
    ),
    "epsilon NaN": (change(rms_norm_eps=float("nan")), "rms_norm_eps"),
    "epsilon negative": (change(rms_norm_eps=-1.0), "rms_norm_eps"),
    "epsilon 1e400": (spliced('"rms_norm_eps_": 1e400'), None),
    "activation of code": (change(hidden_act="__import__('os').system"), "hidden_act"),
    "activation of a megabyte": (change(hidden_act="x" * (1 << 20)), "hidden_act"),
    "rotary base 2^2000": (
        rope(rope_theta=2**2000),
        "rope_theta",
    ),
    "rotary base infinite": (rope(rope_theta=float("inf")), "rope_theta"),
    "rotary type unknown": (rope(rope_type="a" * 1000), "rope_parameters"),
    "rotary factor 1e308": (rope(rope_type="linear", factor=1e308), "factor|context|rope"),
    "rotary factor negative": (rope(rope_type="yarn", factor=-8.0), "factor"),
    "rotary factors of a million": (
        rope(rope_type="longrope", short_factor=[1.0] * 10**6, long_factor=[1.0] * 10**6),
        "factor",
    ),
    "rotary original length 2^63": (
        rope(rope_type="yarn", factor=2.0, original_max_position_embeddings=HUGE),
        "positions",
    ),
    "rotary settings recursive": (
        rope(full_attention={"full_attention": {"full_attention": {}}}),
        None,
    ),
    "window 2^63": (change(sliding_window=HUGE, architectures=["MistralForCausalLM"]), "window"),
    "window negative": (change(sliding_window=-1, architectures=["MistralForCausalLM"]), "window"),
    "layer types of 300,000": (
        change(layer_types=["full_attention"] * 300_000, architectures=["Qwen3ForCausalLM"]),
        "layer_types|missing",
    ),
    "experts 2^63": (
        change(num_local_experts=HUGE, architectures=["MixtralForCausalLM"]),
        "experts",
    ),
    "experts chosen more than there are": (
        change(num_local_experts=2, num_experts_per_tok=9, architectures=["MixtralForCausalLM"]),
        "experts",
    ),
    "architecture a number": (change(architectures=7), "architecture"),
    "architecture a dictionary": (change(architectures={"a": 1}), "architecture"),
    "architecture of a megabyte": (change(architectures=["A" * (1 << 20)]), "architecture"),
    "architecture a module path": (
        change(architectures=["os.system"], auto_map={"AutoModel": "evil.Model"}),
        "os.system",
    ),
    "ten thousand architectures": (change(architectures=["LlamaForCausalLM"] * 10_000), None),
    "model type a path": (
        change(architectures=None, model_type="../../../../etc/passwd"),
        "architecture",
    ),
    "dtype of code": (change(dtype="torch.__builtins__"), None),
    "dtype a dictionary": (change(dtype={"a": ["b"] * 1000}), None),
    "end token 2^63": (change(eos_token_id=HUGE), "eos_token_id"),
    "end token negative": (change(eos_token_id=-7), "eos_token_id"),
    "end tokens of a million": (change(eos_token_id=[1] * 10**6), None),
    "end token a float": (change(eos_token_id=1.5), None),
    "tied head a text": (change(tie_word_embeddings="no"), "tie_word_embeddings"),
    "numbers of 5,000 digits": (spliced('"extra": ' + "9" * 5000), "config.json"),
    "duplicate fields": (spliced('"num_hidden_layers": 1000000'), None),
    "nested 100,000 deep": (text(FILE, '{"a":' * DEEP + "1" + "}" * DEEP), "config.json"),
    "nested lists 100,000 deep": (spliced('"extra": ' + "[" * DEEP + "]" * DEEP), "config.json"),
    "nested 900 deep": (spliced('"extra": ' + "[" * 900 + "]" * 900), "64 nested values"),
    "300,000 fields": (wide, None),
    "a field name of a megabyte": (spliced('"' + "n" * (1 << 20) + '": 1'), None),
    "field names of methods": (
        change(__class__="x", __dict__={}, self=1, get=5),
        None,
    ),
    "invalid UTF-8": (
        binary(FILE, b'{"a": "\xff\xfe"}'),
        "config.json",
    ),
    "surrogates in a name": (change(architectures=["\ud800Llama"]), "architecture"),
    "UTF-16": (
        binary(FILE, '{"a": 1}'.encode("utf-16")),
        "config.json",
    ),
    "empty": (text(FILE, ""), "config.json"),
    "a list": (text(FILE, "[]"), "config.json"),
    "null": (text(FILE, "null"), "config.json"),
    "64 GiB of nothing": (sparse, "config.json"),
    "FIFO": (fifo, "config.json"),
    "directory": (directory, "config.json"),
    "link to an endless device": (link_to("/dev/zero"), "config.json"),
    "link to itself": (link_to(FILE), "config.json"),
    "missing hidden size": (drop("hidden_size"), "hidden_size"),
    "parts within parts": (
        change(text_config={"text_config": {"text_config": {"vocab_size": HUGE}}}),
        None,
    ),
    "dual chunk attention of a text": (
        change(dual_chunk_attention_config="x" * 10**6),
        "dual_chunk_attention_config",
    ),
    "label names of a million": (change(id2label={str(n): "x" for n in range(300_000)}), None),
}
CORPUS: Final = [
    HostileFile(KIND, name, write, refusal) for name, (write, refusal) in WRITERS.items()
]
