"""Page of architectures: the list of `engine models` with counts of served model types."""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.commands.models.command import read_table, rows
from builtin_plugins.commands.models.row import Row
from core.plugin import load_plan, make_plan
from core.plugin.discovery import discover

INTRO = """\
# Architectures

Of the {types} model types with a causal language model in transformers {version}, **{served} are
served**: {native} natively and {generic} through the modules of transformers on the engine's
paged KV cache (`--model-impl`, see [Adding an architecture](../extend/architectures.md)). The
table was made by running every architecture in a tiny size (`scripts/survey_models.py`). `engine
models NAME` prints one entry, `--json` all.

## Served

LoRA targets are the names of linear layers. Quantized checkpoints, tensor parallelism and pooling
need a native architecture. Windows: layers with sliding-window attention. States: layers with
recurrent state instead of keys and values.

| architecture | model types | how | windows | states | quantized | TP | pooling | LoRA targets |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
IMAGES = """
## Models that read images

Every image-text class of transformers, and the models of vLLM that transformers has no class for.
*native*: compared with transformers in tests, with every feature of its own; *text by
transformers*: its text part has no native decoder, and runs through transformers' modules. *text
alone*: requests with images are refused.
*generic*: nothing in its source contradicts the common form, but no test compares it. *refused*:
with the reason. The tower is transformers' own in all of them
([Models that read images](../guides/models.md#models-that-read-images)).

| architecture | model types | how |
| --- | --- | --- |
"""
REST = """
## Not served

| architecture | model types | reason |
| --- | --- | --- |
"""
HIDDEN = "ScriptedModel"
"""Architecture without checkpoints."""


def models_page() -> str:
    """Return the page, for builtin plugins only."""
    third_party = [f"no:{ref.name}" for ref in discover() if not ref.builtin]
    known = [
        row
        for row in rows(load_plan(make_plan(third_party)).entries("models"))
        if row.architecture != HIDDEN
    ]
    table = read_table()
    text_models = [row for row in known if table.get(row.architecture, {}).get("tried") != "images"]
    counts = {
        how: sum(len(row.model_types) for row in text_models if row.how == how)
        for how in ("native", "generic", "no")
    }
    text = INTRO.format(
        types=sum(counts.values()),
        version="5.23",
        served=counts["native"] + counts["generic"],
        **counts,
    )
    text += "".join(_served(row) for row in text_models if row.how != "no")
    text += IMAGES
    with_images = [row for row in known if row.images or row not in text_models]
    text += "".join(_with_images(row) for row in with_images)
    return text + REST + "".join(_unserved(row) for row in text_models if row.how == "no")


def _served(row: Row) -> str:
    flags = (
        row.sliding_window,
        row.running_state,
        row.quantization,
        row.tensor_parallel,
        row.pooling,
    )
    marks = " | ".join("" if flag is None else "yes" if flag else "no" for flag in flags)
    types = _listed(row.model_types)
    targets = _listed(row.lora_targets)
    return f"| {row.architecture} | {types} | {row.how} | {marks} | {targets} |\n"


def _with_images(row: Row) -> str:
    how: str = row.how
    if row.how == "no":
        how = f"refused: {row.reason.replace('|', '/')}"
    elif row.images is False:
        how = f"{row.how}, text alone"
    elif row.tensor_parallel is False:
        how = f"{row.how}, text by transformers"
    return f"| {row.architecture} | {_listed(row.model_types)} | {how} |\n"


def _unserved(row: Row) -> str:
    return f"| {row.architecture} | {_listed(row.model_types)} | {row.reason.replace('|', '/')} |\n"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
