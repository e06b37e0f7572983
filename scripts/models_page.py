"""The page of architectures: what `engine models` lists, with the count of transformers' types that
are served.
"""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.commands.models.table import Row, rows
from core.plugin import load_plan, make_plan
from core.plugin.discovery import discover

INTRO = """\
# Architectures

Of the {types} model types that transformers {version} has a causal language model for, **{served} are served**: {native}
by an architecture of their own, {generic} through transformers' own modules on the engine's paged cache (`--model-impl`,
see [Architecture](../architecture.md#models-are-facts)). What follows was found by trying every architecture in a tiny
form (`scripts/survey_models.py`); `engine models NAME` shows one, `--json` all.

## Served

LoRA targets are the names of linear layers. Quantized checkpoints, tensor parallelism and pooling are for architectures of
their own. Windows are layers that see a part of the text, states are carried along instead of keys and values.

| architecture | model types | how | windows | states | quantization | tensor parallel | pooling | LoRA targets |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
REST = """
## Not served

| architecture | model types | why not |
| --- | --- | --- |
"""
HIDDEN = "ScriptedModel"
"""Serves no checkpoint."""


def models_page() -> str:
    """Return the page, of the builtins alone."""
    strangers = [f"no:{ref.name}" for ref in discover() if not ref.builtin]
    known = [
        row
        for row in rows(load_plan(make_plan(strangers)).entries("models"))
        if row.architecture != HIDDEN
    ]
    counts = {
        how: sum(len(row.model_types) for row in known if row.how == how)
        for how in ("native", "generic", "no")
    }
    text = INTRO.format(
        types=sum(counts.values()),
        version="5.23",
        served=counts["native"] + counts["generic"],
        **counts,
    )
    text += "".join(_served(row) for row in known if row.how != "no")
    return text + REST + "".join(_refused(row) for row in known if row.how == "no")


def _served(row: Row) -> str:
    flags = (
        row.sliding_window,
        row.running_state,
        row.quantization,
        row.tensor_parallel,
        row.pooling,
    )
    marks = " | ".join("" if flag is None else "yes" if flag else "no" for flag in flags)
    return f"| {row.architecture} | {_listed(row.model_types)} | {row.how} | {marks} | {_listed(row.lora_targets)} |\n"


def _refused(row: Row) -> str:
    return f"| {row.architecture} | {_listed(row.model_types)} | {row.reason.replace('|', '/')} |\n"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
