"""LoRA adapters, loaded over the route, by the resolver and offline."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.system.hostile_files.hostile_file import (
    HostileFile,
    Write,
    binary,
    edit_json,
    fields,
    read_safetensors,
    safetensors,
    text,
)

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
KIND: Final = "LoRA adapter"
HUGE: Final = 2**63
change = partial(fields, CONFIG)
STARS: Final = "(a+)+$"
Header = dict[str, Any]


def header(edit: Callable[[Header], Any]) -> Write:
    """Return a writer that changes the header of the weights."""

    def write(folder: Path) -> None:
        stated, data = read_safetensors(folder / WEIGHTS)
        stated.pop("__metadata__", None)
        edit(stated)
        (folder / WEIGHTS).write_bytes(safetensors(stated, data))

    return write


def first(**facts: Any) -> Write:
    """Return a writer that changes the entry of the first tensor."""
    return header(lambda stated: stated[min(stated)].update(facts))


def rename(name: str) -> Write:
    """Return a writer that renames the first tensor."""
    return header(lambda stated: stated.update({name: stated.pop(min(stated))}))


def linked(file: str, target: str) -> Write:
    """Return a writer that replaces a file by a link."""

    def write(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).symlink_to(target)

    return write


def fifo(file: str) -> Write:
    """Return a writer that replaces a file by a FIFO."""

    def write(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return write


def sparse(file: str) -> Write:
    """Return a writer that makes a file of 64 GiB that takes no space."""

    def write(folder: Path) -> None:
        with (folder / file).open("r+b") as opened:
            opened.truncate(64 << 30)

    return write


def many_keys(folder: Path) -> None:
    """Write 10,000 expressions."""
    edit_json(folder, CONFIG, rank_pattern={f"{STARS}{n}": 4 for n in range(10_000)})


WRITERS: Final[dict[str, tuple[Write, str | None]]] = {
    "rank 2^31": (change(r=2**31), "rank"),
    "rank 2^63": (change(r=HUGE), "rank"),
    "rank 0": (change(r=0), "r:"),
    "rank negative": (change(r=-4), "r:"),
    "rank a float": (change(r=4.5), "r:"),
    "rank a text": (change(r="4"), "r:"),
    "rank true": (change(r=True), "r:"),
    "rank of the config is not the tensors'": (change(r=8), "lora_A|rank"),
    "alpha infinite": (change(lora_alpha=float("inf")), "lora_alpha"),
    "alpha NaN": (change(lora_alpha=float("nan")), "lora_alpha"),
    "alpha of 400 digits": (change(lora_alpha=10**400), "lora_alpha"),
    "alpha a list": (change(lora_alpha=[8]), "lora_alpha"),
    "expression of targets": (change(target_modules=STARS), None),
    "expression of targets with alternatives": (change(target_modules="(a|a)*b"), None),
    "expression of targets of a megabyte": (
        change(target_modules="a" * (1 << 19)),
        "target_modules",
    ),
    "expression of targets with a backreference": (
        change(target_modules=r"(a+)\1"),
        None,
    ),
    "expression of ranks": (change(rank_pattern={STARS: 4}), None),
    "expression of alphas": (change(alpha_pattern={"(.*)*x": 4}), None),
    "10,000 expressions": (many_keys, "rank_pattern"),
    "ranks of 2^63": (change(rank_pattern={"q_proj": HUGE}), "rank"),
    "ranks a list": (change(rank_pattern=[1]), "rank_pattern"),
    "targets of numbers": (change(target_modules=[1, 2]), "target_modules"),
    "targets of 100,000 names": (change(target_modules=[f"m{n}" for n in range(50_000)]), None),
    "layers of 2^63": (change(layers_to_transform=[HUGE]), None),
    "layers a text": (change(layers_to_transform="all"), "layers_to_transform"),
    "kind of another method": (change(peft_type="PREFIX_TUNING"), "peft_type"),
    "kind a dictionary": (change(peft_type={"a": 1}), "peft_type"),
    "unknown field": (change(os_system="id"), "os_system"),
    "bias unknown": (change(bias="evil"), "bias"),
    "saved modules a number": (change(modules_to_save=5), "modules_to_save"),
    "saved module outside": (change(modules_to_save=["../../x"]), None),
    "base model a path": (change(base_model_name_or_path="/etc/passwd"), None),
    "config nested 100,000 deep": (text(CONFIG, "[" * 100_000), "adapter_config.json"),
    "config nested in a field": (
        change(loftq_config=json.loads("[" * 500 + "]" * 500)),
        None,
    ),
    "config of 2 MB": (change(auto_mapping="x" * (2 << 20)), "adapter_config.json"),
    "config a list": (text(CONFIG, "[]"), "adapter_config.json"),
    "config empty": (text(CONFIG, ""), "adapter_config.json"),
    "config in UTF-16": (binary(CONFIG, "{}".encode("utf-16")), "r:|adapter_config.json"),
    "config a FIFO": (fifo(CONFIG), "regular file|no folder|no LoRA|cannot be read"),
    "config an endless device": (
        linked(CONFIG, "/dev/zero"),
        "regular file|links|no folder|no LoRA",
    ),
    "config a link outside": (linked(CONFIG, "/etc/hostname"), "links"),
    "config a link to itself": (linked(CONFIG, CONFIG), "links|no LoRA|cannot be read|regular"),
    "config of 64 GiB": (sparse(CONFIG), "adapter_config.json"),
    "weights empty": (binary(WEIGHTS, b""), WEIGHTS),
    "weights of garbage": (binary(WEIGHTS, os.urandom(4096)), WEIGHTS),
    "weights with a header of 2^63": (binary(WEIGHTS, bytes(7) + b"\x80" + bytes(64)), WEIGHTS),
    "weights with a header of 99 MB": (
        binary(WEIGHTS, (99_000_000).to_bytes(8, "little") + bytes(64)),
        WEIGHTS,
    ),
    "weights with a deep header": (binary(WEIGHTS, safetensors(b"[" * 50_000)), WEIGHTS),
    "weights without tensors": (binary(WEIGHTS, safetensors({})), "no tensors"),
    "weights of 64 GiB": (sparse(WEIGHTS), "allows"),
    "weights a FIFO": (fifo(WEIGHTS), "regular file"),
    "weights an endless device": (linked(WEIGHTS, "/dev/zero"), "regular file|links"),
    "weights a link outside": (linked(WEIGHTS, "/etc/hostname"), "links|header|safetensors"),
    "shape of 2^63": (first(shape=[HUGE, 4]), WEIGHTS),
    "shape that overflows": (first(shape=[2**33, 2**33]), WEIGHTS),
    "shape negative": (first(shape=[-4, -32]), WEIGHTS),
    "shape of five dimensions": (first(shape=[1] * 5), WEIGHTS),
    "shape of a million dimensions": (first(shape=[1] * 10**6), WEIGHTS),
    "shape swapped": (
        header(lambda s: s[min(s)].update(shape=s[min(s)]["shape"][::-1])),
        "lora_A|rank|shape",
    ),
    "offsets of 2^62": (first(data_offsets=[2**62, 2**62 + 512]), WEIGHTS),
    "offsets of texts": (first(data_offsets=["0", "1"]), WEIGHTS),
    "dtype of integers": (first(dtype="I32"), "dtype"),
    "dtype of a megabyte": (first(dtype="F" * (1 << 20)), "dtype"),
    "dtype a list": (first(dtype=["F32"]), WEIGHTS),
    "pair without its other half": (header(lambda s: s.pop(min(s))), "missing"),
    "name with a traversal": (rename("../../etc/passwd"), "name of a LoRA tensor"),
    "name of a traversal of modules": (
        rename("base_model.model.../../x.lora_A.weight"),
        "target|missing",
    ),
    "name of a dunder": (rename("base_model.model.__class__.lora_A.weight"), "target|missing"),
    "name of 100,000 characters": (rename("n" * 100_000), "characters"),
    "name with control characters": (rename("a\x1b[31m\n.lora_A.weight"), "target|name|missing"),
    "name of dots": (rename("." * 900 + ".lora_A.weight"), "target|missing"),
    "name of another layer": (
        rename("base_model.model.model.layers.99999999999.mlp.up_proj.lora_A.weight"),
        "target|missing",
    ),
    "name empty": (rename(""), "name of a LoRA tensor"),
}
RESOLVED: Final = (
    "rank 2^63",
    "expression of targets",
    "10,000 expressions",
    "config nested 100,000 deep",
    "config a FIFO",
    "config an endless device",
    "config a link to itself",
    "weights a FIFO",
    "weights of 64 GiB",
    "shape of 2^63",
    "name with a traversal",
    "weights with a header of 2^63",
    "pair without its other half",
)
"""Those that are loaded by the resolver and offline, too."""
CORPUS: Final = [
    *(
        HostileFile(KIND, name, write, refusal, "adapter_by_route", "adapter")
        for name, (write, refusal) in WRITERS.items()
    ),
    *(
        HostileFile(KIND, f"{name}, {way}", WRITERS[name][0], refusal, f"adapter_{way}", "adapter")
        for name in RESOLVED
        for way, refusal in (
            ("by_resolver", WRITERS[name][1] and "adapter"),
            ("offline", WRITERS[name][1]),
        )
    ),
]
