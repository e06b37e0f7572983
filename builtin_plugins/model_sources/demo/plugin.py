"""The shipped demo model `demo:`, also the `default`; its adapters are `demo:NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from core.api import hookimpl

FOLDER: Final = Path(__file__).parent / "model"
ADAPTERS: Final = Path(__file__).parent / "adapters"


@hookimpl(tryfirst=True)
def engine_find_model(model: str) -> str | None:
    return str(FOLDER) if model in ("default", "demo:") else None


@hookimpl(optionalhook=True)
def engine_find_adapter(path: str) -> str | None:
    name = path.removeprefix("demo:")
    return str(ADAPTERS / name) if name != path and name in ("capitals", "pirate") else None
