"""`--middleware`: ASGI middleware of the operator's own, by import path, as in vLLM."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any, Final

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp

from core.api import ConfigError

FLAG: Final = "--middleware"


def load_middleware(path: str) -> Any:
    """Return the class or coroutine function at a dotted path. Raises `ConfigError`."""
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{FLAG}: got {path!r:.200}; expected the import path of a class or a coroutine "
            f"function ({error}). Correct it, or add its folder to PYTHONPATH."
        ) from error
    if not (inspect.isclass(found) or inspect.iscoroutinefunction(found)):
        raise ConfigError(
            f"{FLAG}: got {path!r:.200}, a {type(found).__name__}; expected an ASGI middleware "
            "class, or a coroutine function of (request, call_next). Change it."
        )
    return found


def wrap(app: ASGIApp, paths: Sequence[str]) -> ASGIApp:
    """Return the application inside of the middleware; the last one is outermost.

    A class is constructed with the application. A coroutine function gets the request, and a
    function that returns the answer of the application.
    """
    for path in paths:
        found = load_middleware(path)
        if inspect.isclass(found):
            make: Any = found
            app = make(app)
        else:
            app = BaseHTTPMiddleware(app, dispatch=found)
    return app
