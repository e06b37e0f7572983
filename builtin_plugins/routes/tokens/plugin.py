"""Token ids in and out, and prompts without generating: for callers that split the two."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.tokens.generate:TokenRoutes"
    home = "builtin_plugins.routes.tokens"
    return [
        Entry("tokens", target, "token ids in, token ids out", requires=("fastapi",)),
        Entry(
            "render",
            f"{home}.render:RenderRoutes",
            "prompts without generating",
            requires=("fastapi",),
        ),
        Entry(
            "derender",
            f"{home}.derender:DerenderRoutes",
            "answers from generated tokens",
            requires=("fastapi",),
        ),
    ]


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Serve /inference/v1/generate, token ids in and out, and /abort_requests; goes well with "
        "--skip-tokenizer-init."
    )
    scale_out = (
        "Serve /v1/chat/completions/render and /v1/completions/render, which return prompts "
        "without generating, /inference/v1/generate, which generates from them, and "
        "/v1/chat/completions/derender and /v1/completions/derender, which make answers of it."
    )
    return [
        Option("tokens_only", bool, False, text),
        Option("enable_scale_out", bool, False, scale_out),
    ]
