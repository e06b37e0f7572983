"""`/tokenize`, `/detokenize` and `/tokenizer_info`: the model's tokenizer over HTTP."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.tokens.tokenize:TokenizeRoutes"
    return [Entry("tokenize", target, "text to token ids and back", requires=("fastapi",))]


@hookimpl
def engine_options() -> list[Option]:
    text = "Serve /tokenizer_info: the tokenizer's settings and the chat template."
    return [Option("enable_tokenizer_info_endpoint", bool, False, text)]
