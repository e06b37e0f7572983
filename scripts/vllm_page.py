"""Page of vLLM's flags and their support here, from the actual options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from builtin_plugins.features.unsupported_flags.environment import GUARDS, REPLACEMENTS
from builtin_plugins.features.unsupported_flags.missing import MISSING
from builtin_plugins.features.unsupported_flags.names import MISSING_NAMES
from builtin_plugins.features.unsupported_flags.not_needed import NOT_NEEDED
from core.cli.field_docs import show_default
from core.cli.vllm_flags import ALIASES, SHORT
from core.config.fields import Field, FieldTable
from core.plugin.kinds import KINDS

FLAGS: Final = Path(__file__).parent / "vllm_flags.json"
"""Flags of `vllm serve` with their defaults and spellings; `{}` for config classes."""
VLLM_KV_DTYPES: Final = [
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "octave_k3v4",
    "octave_k3v3",
    "octave_k3v3_compact",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
]
"""Values of `--kv-cache-dtype` in vLLM 0.33."""
STARTUP: Final[Mapping[str, str]] = {
    "help": "also `--help=GROUP` and `--help=TEXT`",
    "config": "YAML or TOML; also `ENGINE_CONFIG`",
}
"""Flags that are read before the options, with a note."""

NOTES: Final[Mapping[str, str]] = {
    "allowed_origins": "other origins are rejected unless listed",
    "api_key": "also `ENGINE_API_KEY`; on every path except probes, in vLLM only below `/v1`, "
    "`/v2` and `/inference`",
    "async_scheduling": "default: on for asynchronous devices, off on CPUs",
    "attention_backend": "plugin names: `engine plugins explain attention_backends`; see the "
    "[names in vLLM](../extend/kernels.md#gpu-platform)",
    "block_size": "chosen by the platform in vLLM",
    "data_parallel_backend": "`mp`, or the name of a launcher; `ray` is `engine-ray`",
    "disable_fastapi_docs": "there is a description at `/openapi.json`, and no page",
    "distributed_executor_backend": "`uni`, `mp`, or a plugin; `ray` is `engine-ray`",
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
    "max_num_queued_reqs": "counts waiting and running requests, as in vLLM; `--max-waiting` "
    "counts the waiting ones",
    "max_num_scheduled_tokens": "lowers `--max-num-batched-tokens`, which counts draft tokens, too",
    "max_num_seqs": "default: 128, offline 256",
    "master_port": "needs `--node-key`: [several hosts](../guides/scaling.md#several-hosts)",
    "model": "argument of `engine serve`, as in vLLM",
    "pooler_config": "[pooler keys](../guides/pooling.md#pooler-configuration); unknown ones are "
    "rejected",
    "prefix_caching_hash_algo": "`sha256` only",
    "quantization": "[checkpoint formats](../guides/quantization.md) and load-time rounding "
    "(`int8`, `int4`); plugins add others",
    "runner": "no `draft`",
    "shutdown_timeout": "vLLM aborts open requests at once; here they may end",
    "tokenizer_mode": "plugin names",
    "trust_remote_code": "runs tokenizer code only, never model code",
}
"""Notes on supported flags."""

INTRO: Final = """\
# Flags of vLLM

Every flag of `vllm serve` {version} and its support here: of {total} flags {served} are served,
{missing} name a missing feature, and {not_needed} are not needed. Generated from the options of
this version; `make check` fails when the page is stale. Underscores, `--no-` and `--disable-`
forms and dotted JSON keys work as in vLLM.
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
the missing feature. A plugin that adds the feature adds its flags, too. {older} are of older
versions.

| missing feature | flags |
| --- | --- |
"""
UNNEEDED: Final = """\
## Not needed

These flags are parsed too. A value other than vLLM's default stops the start with the reason.

| not needed here, because | flags |
| --- | --- |
"""
NAMES: Final = """\
## Names

Names of vLLM's backends, formats and methods without an entry here. Each is refused with the text
below; the [other names](../guides/coming_from_vllm.md) are served.

| kind | names | what they are |
| --- | --- | --- |
"""
KV_DTYPES: Final = """
`--kv-cache-dtype` takes {served}; {refused} of vLLM are refused: their packed formats need kernels
of their own.
"""
VARIABLES: Final = """\
## Environment variables

Every variable `VLLM_*` that is set is named at the start. These stop it, because ignoring them
would be unsafe:

| variable | instead |
| --- | --- |
"""
REPLACED: Final = """
These are named with what does the same here; all others of vLLM have no counterpart:

| variable | here |
| --- | --- |
"""
ADDITIONAL: Final = """\
## Not in vLLM

"""


def vllm_page(table: FieldTable) -> str:
    """Return the page.

    Raises `ValueError` for an unknown vLLM flag and for an unused note.
    """
    source = json.loads(FLAGS.read_text(encoding="utf-8"))
    theirs: dict[str, Any] = source["flags"]
    unknown = sorted(set(theirs) - set(table.by_name) - set(STARTUP))
    known = [table.by_name[name] for name in theirs if name in table.by_name]
    served = [found for found in known if not found.refuse]
    unused = sorted(set(NOTES) - {found.name for found in served})
    if unknown or unused:
        raise ValueError(
            f"vLLM flags without an option: {unknown}; notes on unsupported flags: {unused}"
        )
    missing = _refused(MISSING, table)
    not_needed = _refused(NOT_NEEDED, table)
    older = [
        _spelling(found)
        for found in (*_fields(missing), *_fields(not_needed))
        if found.name not in theirs
    ]
    counts = {
        "version": source["version"],
        "total": len(theirs),
        "served": len(served) + len(STARTUP),
        "missing": sum(found.name in theirs for found in _fields(missing)),
        "not_needed": sum(found.name in theirs for found in _fields(not_needed)),
    }
    own = [
        _spelling(found)
        for found in table.by_name.values()
        if found.name not in theirs and not found.refuse
    ]
    startup = [f"| `--{name}` | | {note} |\n" for name, note in STARTUP.items()]
    return "".join(
        [
            f"{INTRO.format(**counts)}\n{SUPPORTED}",
            *startup,
            *(
                f"| {_spelling(found)} | {_default(found, theirs[found.name]['default'])} "
                f"| {_note(found)} |\n"
                for found in served
            ),
            f"\n{UNSUPPORTED.format(older=', '.join(older))}",
            *_rows(missing),
            f"\n{UNNEEDED}",
            *_rows(not_needed),
            f"\n{NAMES}",
            *_name_rows(),
            _kv_dtypes(table.by_name["kv_cache_dtype"]),
            f"\n{VARIABLES}",
            *_pairs(GUARDS),
            REPLACED,
            *_pairs(REPLACEMENTS),
            f"\n{ADDITIONAL}{', '.join(own)}: see the ",
            "[configuration reference](configuration.md).\n",
        ]
    )


def _refused(groups: Mapping[str, Mapping[str, Any]], table: FieldTable) -> dict[str, list[Field]]:
    """Return the fields of the options that no plugin serves, by feature or reason."""
    return {
        text: [table.by_name[name] for name in options if table.by_name[name].refuse]
        for text, options in groups.items()
    }


def _fields(groups: Mapping[str, list[Field]]) -> list[Field]:
    return [found for fields in groups.values() for found in fields]


def _rows(groups: Mapping[str, list[Field]]) -> list[str]:
    return [
        f"| {text} | {', '.join(map(_spelling, fields))} |\n"
        for text, fields in groups.items()
        if fields
    ]


def _name_rows() -> list[str]:
    """Return the rows of missing names, one per kind and text."""
    rows: dict[tuple[str, str], list[str]] = {}
    for label, text in MISSING_NAMES.items():
        kind, _, name = label.partition(":")
        rows.setdefault((KINDS[kind].noun, text), []).append(f"`{name}`")
    return [f"| {noun} | {', '.join(names)} | {text} |\n" for (noun, text), names in rows.items()]


def _kv_dtypes(found: Field) -> str:
    served = [str(choice) for choice in found.type.choices or ()]
    refused = [name for name in VLLM_KV_DTYPES if name not in served]
    return KV_DTYPES.format(
        served=", ".join(f"`{name}`" for name in served),
        refused=", ".join(f"`{name}`" for name in refused),
    )


def _pairs(texts: Mapping[str, str]) -> list[str]:
    return [f"| `{name}` | {text} |\n" for name, text in sorted(texts.items())]


def _spelling(found: Field) -> str:
    aliases = [alias for alias, flag in ALIASES.items() if flag == found.flag]
    spellings = [found.flag, *filter(None, [SHORT.get(found.name)]), *aliases]
    return " ".join(f"`{each}`" for each in spellings)


def _note(found: Field) -> str:
    return NOTES.get(found.name, "")


def _default(found: Field, theirs: Any) -> str:
    """Return the default, or both if they differ."""
    ours = found.default
    if ours == theirs or (not ours and not theirs):
        return f"`{show_default(ours)}`"
    return f"`{show_default(theirs)}` in vLLM, **`{show_default(ours)}`** here"
