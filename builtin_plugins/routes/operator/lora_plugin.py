"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, with `--enable-runtime-lora`."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.operator.lora:AdapterRoutes"
    return [Entry("lora", target, "adapters loaded and unloaded", requires=("fastapi",))]


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Let clients load and unload adapters: /v1/load_lora_adapter. Every client with a key may "
        "then name folders of this machine."
    )
    return [Option("enable_runtime_lora", bool, False, text, needs=("enable_lora", "lora_modules"))]
