"""`/inference/v1/generate` with `--tokens-only`: for callers that tokenize themselves."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.tokens.generate:TokenRoutes"
    return [Entry("tokens", target, "token ids in, token ids out", requires=("fastapi",))]


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Serve /inference/v1/generate, token ids in and out, and /abort_requests; goes well with "
        "--skip-tokenizer-init."
    )
    return [Option("tokens_only", bool, False, text)]
