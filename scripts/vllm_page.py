"""Page of vLLM's flags and their support here, from the actual options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from core.cli.field_docs import show_default
from core.cli.flags import SHORT
from core.config.fields import Field, FieldTable

VERSION: Final = "0.13"
FLAGS: Final = Path(__file__).parent / "vllm_flags.json"
"""Flags of `vllm serve` with their defaults; objects for config classes."""

NOTES: Final[Mapping[str, str]] = {
    "allowed_origins": "other origins are rejected unless listed",
    "api_key": "also `ENGINE_API_KEY`; on every path except probes, in vLLM only below `/v1`",
    "async_scheduling": "default: on for asynchronous devices, off on CPUs",
    "attention_backend": "plugin names: `engine plugins explain attention_backends`; see the "
    "[names in vLLM](../extend/kernels.md#gpu-platform)",
    "block_size": "chosen by the platform in vLLM",
    "disable_log_requests": "deprecated in vLLM, too; already the default",
    "disable_fastapi_docs": "accepted without effect: no such pages",
    "disable_frontend_multiprocessing": "runs the engine in the API process, without restarts",
    "distributed_executor_backend": "`uni`, `mp`, or a plugin; no `ray`",
    "dtype": "`auto` selects bfloat16 for float16 checkpoints on CPUs",
    "enable_chunked_prefill": "chosen by the model in vLLM",
    "enable_log_requests": "one line per finished request, without text",
    "enable_prefix_caching": "chosen by the model in vLLM",
    "gpu_memory_utilization": "no effect on a CPU: `--kv-cache-memory-bytes`",
    "h11_max_incomplete_event_size": "applies to request line and headers",
    "host": "all interfaces in vLLM; set `0.0.0.0` here",
    "load_format": "`auto`, `safetensors`, `dummy`, or a plugin",
    "max_log_len": "accepted without effect: request text is never logged",
    "max_model_len": "default: cut to the cache size instead of an error",
    "max_num_batched_tokens": "default: 2048, offline 4096",
    "max_num_seqs": "default: 128, offline 256",
    "model": "argument of `engine serve`, as in vLLM",
    "pooler_config": "[pooler keys](../guides/pooling.md#pooler-configuration); unknown ones are "
    "rejected",
    "prefix_caching_hash_algo": "`sha256` only",
    "quantization": "[checkpoint formats](../guides/quantization.md) and load-time rounding "
    "(`int8`, `int4`); plugins add others",
    "runner": "no `draft`",
    "tokenizer_mode": "plugin names",
    "trust_remote_code": "runs tokenizer code only, never model code",
}
"""Notes on supported flags."""

INTRO: Final = f"""\
# Flags of vLLM

Every flag of `vllm serve` {VERSION} and its support here. Generated from the options of this
version; `make check` fails when the page is stale. Underscores, `--no-` forms and dotted JSON
keys work as in vLLM.
"""
SUPPORTED: Final = """\
## Supported

Same name and meaning. If a default differs, both are listed.

| flag | default | notes |
| --- | --- | --- |
"""
UNSUPPORTED: Final = """\
## Unsupported

These flags are parsed. A value that requests nothing (vLLM's default, or a switched-off feature) is
accepted, so scripts that spell out defaults keep working. Any other value stops the start and names
the missing feature. A plugin that adds the feature adds its flags, too.

| missing feature | flags |
| --- | --- |
"""
ADDITIONAL: Final = """\
## Not in vLLM

"""


def vllm_page(table: FieldTable) -> str:
    """Return the page.

    Raises `ValueError` for an unknown vLLM flag and for an unused note.
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
    unused = sorted(set(NOTES) - {found.name for found in served})
    if unknown or unused:
        raise ValueError(
            f"vLLM flags without an option: {unknown}; notes on unsupported flags: {unused}"
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
            f"{INTRO}\n{SUPPORTED}",
            *(
                f"| {_spelling(found)} | {_default(found, theirs[found.name])} | {_note(found)} |\n"
                for found in served
            ),
            f"\n{UNSUPPORTED}",
            *(f"| {feature} | {', '.join(flags)} |\n" for feature, flags in features.items()),
            f"\n{ADDITIONAL}{', '.join(own)}: see the ",
            "[configuration reference](configuration.md).\n",
        ]
    )


def _spelling(found: Field) -> str:
    short = SHORT.get(found.name)
    return f"`{found.flag}`" + (f" `{short}`" if short else "")


def _note(found: Field) -> str:
    return NOTES.get(found.name, "")


def _default(found: Field, theirs: Any) -> str:
    """Return the default, or both if they differ."""
    ours = found.default
    if ours == theirs or (not ours and not theirs):
        return f"`{show_default(ours)}`"
    return f"`{show_default(theirs)}` in vLLM, **`{show_default(ours)}`** here"
