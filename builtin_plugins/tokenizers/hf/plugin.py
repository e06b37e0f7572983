"""Tokenizers in the Hugging Face layout."""

from core.api import Entry, hookimpl


@hookimpl
def engine_tokenizers() -> list[Entry]:
    """Return the tokenizer."""
    target = "builtin_plugins.tokenizers.hf.loading:load_tokenizer"
    return [Entry("hf", target, "tokenizer.json, or whatever transformers can read")]
