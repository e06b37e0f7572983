"""The shipped demo model `demo:`, also the `default`; its adapters are `demo:NAME`.

`demo:vision` is the same language model with a vision tower: its folder has what the tower adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from core.api import EngineConfig, Entry, hookimpl
from core.api.models import ModelSource

FOLDER: Final = Path(__file__).parent / "model"
VISION: Final = Path(__file__).parent / "vision"
ADAPTERS: Final = Path(__file__).parent / "adapters"
VISION_NAME: Final = "demo:vision"
ARCHITECTURE: Final = "DemoVisionForConditionalGeneration"
SERVED_NAME: Final = "demo"
PARSERS: Final = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "think",
}


@hookimpl(tryfirst=True)
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | str | None:
    if model == VISION_NAME:
        # Imported lazily: only when a model is looked up.
        from builtin_plugins.model_sources.huggingface.source import describe

        source = describe(model, VISION, config, origin="checkpoint")
        return replace(source, weight_loader="demo_vision")
    return str(FOLDER) if model in ("default", "demo:") else None


@hookimpl(optionalhook=True)
def engine_serve_defaults(model: str) -> Mapping[str, Any] | None:
    if model not in ("default", "demo:", VISION_NAME):
        return None
    return {"served_model_name": [SERVED_NAME, model], **PARSERS}


@hookimpl
def engine_models() -> list[Entry]:
    target = "builtin_plugins.model_sources.demo.architecture:spec"
    return [Entry(ARCHITECTURE, target, "the demo model with its tower")]


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    target = "builtin_plugins.model_sources.demo.loader:DemoVisionLoader"
    return [Entry("demo_vision", target, "the demo model and its vision tower, two files")]


@hookimpl(optionalhook=True)
def engine_find_adapter(path: str) -> str | None:
    name = path.removeprefix("demo:")
    return str(ADAPTERS / name) if name != path and name in ("capitals", "pirate") else None
