"""`/tokenize` and `/detokenize`: what the model's tokenizer makes of a text, a conversation or ids."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.tokenize.routes:TokenizeRoutes"
    return [Entry("tokenize", target, "text to token ids and back", requires=("fastapi",))]
