"""The page of vLLM's flags: what each is here, read from the options there really are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from core.cli.flags import SHORT
from core.cli.reference_page import show_default
from core.config.fields import Field, FieldTable

VERSION: Final = "0.13"
FLAGS: Final = Path(__file__).parent / "vllm_flags.json"
"""vLLM's flags of `serve` with their defaults; an object in place of a class of settings."""

NOTES: Final[Mapping[str, str]] = {
    "allowed_origins": "browsers of other sites may call only when they are named",
    "api_key": "`ENGINE_API_KEY` too; on every path but probes, there only below `/v1`",
    "async_scheduling": "left open: on where the platform computes beside the host, off on CPUs",
    "attention_backend": "names of plugins: `engine plugins explain attention_backends`; [names "
    "there](../gpu.md#recorded-steps) of what is here",
    "block_size": "there the platform chooses",
    "disable_log_requests": "deprecated there, too; what it says is the default",
    "disable_fastapi_docs": "accepted; there are no such pages",
    "disable_frontend_multiprocessing": "the engine in the API process; then nothing restarts it",
    "distributed_executor_backend": "`uni`, `mp`, or a plugin's; no `ray`",
    "dtype": "`auto` takes bfloat16 for float16 checkpoints on a CPU",
    "enable_chunked_prefill": "there the model decides",
    "enable_log_requests": "one line when a request has ended; never text",
    "enable_prefix_caching": "there the model decides",
    "gpu_memory_utilization": "no effect on a CPU: `--kv-cache-memory-bytes`",
    "h11_max_incomplete_event_size": "of the request line and headers",
    "host": "every network there; here `0.0.0.0` has to be asked for",
    "load_format": "`auto`, `safetensors`, `dummy`, or a plugin's",
    "max_log_len": "accepted; no text of a request is ever logged",
    "max_model_len": "left open: cut to what the cache holds, instead of an error",
    "max_num_batched_tokens": "left open: 2048, offline 4096",
    "max_num_seqs": "left open: 128, offline 256",
    "model": "the argument of `engine serve`, as there",
    "pooler_config": "[of pooling models](../pooling.md#how-it-is-pooled); unknown keys are "
    "refused",
    "prefix_caching_hash_algo": "`sha256` only",
    "quantization": "[formats of checkpoints](../quantization.md) and rounding while loading "
    "(`int8`, `int4`) are built in; plugins bring others",
    "runner": "no `draft`",
    "tokenizer_mode": "names of plugins",
    "trust_remote_code": "runs code of tokenizers only, never of models",
}
"""What is to know of flags that work."""

INTRO: Final = f"""\
# Flags of vLLM

Every flag of `vllm serve` {VERSION}, and what it is here. The page is made from the options of this version; `make check`
fails when it is out of date. Spellings with underscores, `--no-` forms and dotted JSON keys work as there.
"""
SERVED: Final = """\
## Taken

Same name, same meaning. Where a default differs, both are shown.

| flag | default | to know |
| --- | --- | --- |
"""
REFUSED: Final = """\
## Known and refused

Each is parsed. A value that asks for nothing (vLLM's default, or what switches off something that is not here) is let through,
so scripts that spell such out keep working; any other stops the start and names what is missing. A plugin that brings the feature brings its flags, too.

| missing | flags |
| --- | --- |
"""
OURS: Final = """\
## Not in vLLM

"""


def vllm_page(table: FieldTable) -> str:
    """Return the page.

    Raises `ValueError` for a flag of vLLM that nobody knows, and a note that nobody reads.
    """
    theirs: dict[str, Any] = json.loads(FLAGS.read_text(encoding="utf-8"))
    unknown = sorted(set(theirs) - set(table.by_name))
    served = [
        table.by_name[name]
        for name in theirs
        if name not in unknown and not table.by_name[name].refuse
    ]
    refused = [
        table.by_name[name] for name in theirs if name not in unknown and table.by_name[name].refuse
    ]
    useless = sorted(set(NOTES) - {found.name for found in served})
    if unknown or useless:
        raise ValueError(
            f"flags of vLLM that are no options here: {unknown}; notes of flags not served: "
            f"{useless}"
        )
    features: dict[str, list[str]] = {}
    for found in refused:
        features.setdefault(found.help or "", []).append(_spelling(found))
    own = [
        _spelling(found)
        for found in table.by_name.values()
        if found.name not in theirs and not found.refuse
    ]
    return "".join(
        [
            f"{INTRO}\n{SERVED}",
            *(
                f"| {_spelling(found)} | {_default(found, theirs[found.name])} | {_note(found)} |\n"
                for found in served
            ),
            f"\n{REFUSED}",
            *(f"| {feature} | {', '.join(flags)} |\n" for feature, flags in features.items()),
            f"\n{OURS}{', '.join(own)}: see the [configuration reference](configuration.md).\n",
        ]
    )


def _spelling(found: Field) -> str:
    short = SHORT.get(found.name)
    return f"`{found.flag}`" + (f" `{short}`" if short else "")


def _note(found: Field) -> str:
    return NOTES.get(found.name, "")


def _default(found: Field, theirs: Any) -> str:
    """Return the default; both, where they mean different things."""
    ours = found.default
    if ours == theirs or (not ours and not theirs):
        return f"`{show_default(ours)}`"
    return f"`{show_default(theirs)}` there, **`{show_default(ours)}`** here"
