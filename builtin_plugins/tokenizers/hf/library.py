"""Calls into the tokenizers library, with its errors and panics as errors of the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers

from core.api import InvalidRequest, RequestFailed

INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that are no failures of the library; its panics derive from BaseException, too."""


def encode_ids(inner: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Return the ids of a text. Raises `InvalidRequest` if the library fails."""
    # A batch of one, because `encode` holds the GIL and a long text would block all streams.
    call: Any = inner.encode_batch_fast
    ids: list[int] = _encoded(call, [text], add_special_tokens)[0].ids
    return ids


def encode_texts(inner: tokenizers.Tokenizer, texts: Sequence[str]) -> list[tokenizers.Encoding]:
    """Return the encodings of texts without special tokens. Raises `InvalidRequest`."""
    encodings: list[tokenizers.Encoding] = _encoded(inner.encode_batch, texts, False)
    return encodings


def decode_ids(inner: tokenizers.Tokenizer, ids: Sequence[int], skip_special_tokens: bool) -> str:
    """Return the text of ids. Raises `RequestFailed` if the library fails."""
    try:
        text: str = inner.decode(list(ids), skip_special_tokens=skip_special_tokens)
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise RequestFailed(f"the model's tokenizer cannot decode it ({error!s:.200}).") from error
    return text


def _encoded(call: Any, texts: Sequence[str], add_special_tokens: bool) -> Any:
    try:
        return call(texts, add_special_tokens=add_special_tokens)
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise InvalidRequest(
            "prompt", f"the model's tokenizer cannot encode it ({error!s:.200}). Change the text."
        ) from error
