"""Files that options name: FIFOs, devices, folders, sparse, deep, cut and linked ones."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.system.hostile_files.hostile_file import HostileFile, Write

KIND: Final = "file of an option"
WAY: Final = "command"
FOLDER: Final = "{folder}"
"""Stands for the good folder in arguments; `{file}` for the hostile file."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option that names a file."""

    arguments: Sequence[str]
    """Command line, with `{file}` and `{folder}`."""
    suffix: str = ".txt"
    accepted: Sequence[str] = ()
    """Contents that are valid there."""
    more: Mapping[str, Write] = field(default_factory=dict)
    """Kinds of files that only this option meets."""
    refusal: str = "hostile"
    """What a refusal names: by default the file."""


def content(text: bytes) -> Write:
    """Return a writer of the file's content."""
    return lambda path: path.write_bytes(text) and None


def sparse(path: Path) -> None:
    """Make a file of 10 GB that takes no space."""
    with path.open("wb") as file:
        file.truncate(10 << 30)


def linked(target: str) -> Write:
    """Return a writer of a link."""
    return lambda path: path.symlink_to(target)


def write_inputs(folder: Path) -> None:
    """Write the good files that the command lines name."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (folder / "chats.jsonl").write_text(json.dumps(line) + "\n")


def linked_to_itself(path: Path) -> None:
    """Make a loop of links."""
    path.symlink_to(path.name)


SERVE: Final = ("serve", "demo:", "--port", "0", "--disable-frontend-multiprocessing")
RUN_BATCH: Final = ("run-batch", "demo:", "--disable-frontend-multiprocessing")
BATCH: Final = (*RUN_BATCH, "-i", "{folder}/chats.jsonl", "-o", "{folder}/out.jsonl")
KINDS: Final[Mapping[str, Write]] = {
    "FIFO": lambda path: os.mkfifo(path),
    "folder": lambda path: path.mkdir(),
    "link to an endless device": linked("/dev/zero"),
    "link to the null device": linked(os.devnull),
    "link to itself": linked_to_itself,
    "10 GB of nothing": sparse,
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "garbage": content(b"\xff\xfe\x00\x80garbage\n" * 100),
    "NUL characters": content(b"\0" * 4096),
    "nested 100,000 deep": content(b"[" * 100_000),
}
"""Kinds of files that every option meets."""
DOUBLED: Final = {
    f"{what} that double 30 times": content(
        f"a: &a0 {first}\n".encode()
        + b"".join(b"b%d: &a%d %b\n" % (n, n + 1, each % (n, n)) for n in range(30))
    )
    for what, first, each in (
        ("aliases", "[x]", b"[*a%d, *a%d]"),
        ("merged keys", "{k: 1}", b"{<<: [*a%d, *a%d]}"),
    )
}
"""YAML that takes gigabytes once its aliases are expanded."""
NOTHING: Final = ("empty", "link to the null device")
TEXTS: Final = (*NOTHING, "garbage", "NUL characters", "nested 100,000 deep")
"""Contents that count as lines of text, each with an error of its own."""
OUTPUTS: Final = (*TEXTS, "missing", "10 GB of nothing", "link to an endless device")
"""Files that are overwritten."""
OPTIONS: Final[Mapping[str, Option]] = {
    "--config, TOML": Option(("plan", "demo:", "--config", "{file}"), ".toml", NOTHING),
    "--config, YAML": Option(
        ("plan", "demo:", "--config", "{file}"),
        ".yaml",
        NOTHING,
        DOUBLED,
    ),
    "--models-file": Option(("serve", "--models-file", "{file}"), ".yaml", (), DOUBLED),
    "--plugins-lock": Option(("--plugins-lock", "{file}", "plan", "demo:"), ".json"),
    "--plugins": Option(("--plugins", "{file}", "plan", "demo:"), ".py", ("empty",)),
    "--scripted-answers": Option(
        ("generate", "scripted:", "--scripted-answers", "{file}", "--prompt", "x"),
        ".jsonl",
        ("NUL characters", "nested 100,000 deep"),
    ),
    "--chat-template": Option(
        (*BATCH, "--chat-template", "{file}"),
        ".jinja",
        (*NOTHING, "NUL characters", "nested 100,000 deep"),
    ),
    "--log-config-file": Option((*SERVE, "--log-config-file", "{file}"), ".json"),
    "--ssl-certfile": Option((*SERVE, "--ssl-certfile", "{file}"), ".pem"),
    "--ssl-keyfile": Option(
        (*SERVE, "--ssl-certfile", "{folder}/chats.jsonl", "--ssl-keyfile", "{file}"),
        ".pem",
    ),
    "token_file": Option(
        (
            *("generate", "demo:", "--prompt", "x", "--max-tokens", "2", "--kv-transfer-config"),
            '{"kv_connector": "tcp", "kv_role": "kv_both", '
            '"kv_connector_extra_config": {"token_file": "{file}"}}',
        ),
        accepted=("NUL characters",),
        refusal="token",
    ),
    "run-batch --input-file": Option(
        (*RUN_BATCH, "-i", "{file}", "-o", "{folder}/out.jsonl"), ".jsonl", TEXTS
    ),
    "run-batch --output-file": Option(
        (*RUN_BATCH, "-i", "{folder}/chats.jsonl", "-o", "{file}"), ".jsonl", OUTPUTS
    ),
    "quantize --scales": Option(
        ("quantize", "{folder}", "{folder}/out", "--scales", "{file}"),
        accepted=("NUL characters", "nested 100,000 deep"),
    ),
    "quantize OUT": Option(("quantize", "{folder}", "{file}"), accepted=("missing", "folder")),
    "parse --tools": Option(
        ("parse", "--tool-call-parser", "hermes", "--tools", "{file}"), ".json"
    ),
    "parse --model": Option(("parse", "--model", "{file}")),
    "--journal": Option(
        ("generate", "demo:", "--prompt", "x", "--max-tokens", "2", "--journal", "{file}"),
        accepted=OUTPUTS,
    ),
    "--generation-config": Option(("plan", "{folder}", "--generation-config", "{file}")),
    "bench, custom": Option(
        ("bench", "throughput", "demo:", "--dataset-name", "custom", "--dataset-path", "{file}"),
        ".jsonl",
    ),
    "bench, sharegpt": Option(
        ("bench", "throughput", "demo:", "--dataset-name", "sharegpt", "--dataset-path", "{file}"),
        ".json",
    ),
    "bench, burstgpt": Option(
        ("bench", "throughput", "demo:", "--dataset-name", "burstgpt", "--dataset-path", "{file}"),
        ".csv",
    ),
    "bench, hf": Option(
        ("bench", "throughput", "demo:", "--dataset-name", "hf", "--dataset-path", "{file}"),
        ".jsonl",
    ),
}
CORPUS: Final = [
    HostileFile(
        KIND,
        f"{name}, {kind}",
        lambda folder, write=write, option=option: write(folder.parent / f"hostile{option.suffix}"),
        None if kind in option.accepted else option.refusal,
        WAY,
        options={"arguments": option.arguments, "file": f"hostile{option.suffix}"},
    )
    for name, option in OPTIONS.items()
    for kind, write in {**KINDS, **option.more}.items()
]
