"""Log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from core.api import Logprob

LOWEST: Final = -9999.0
"""Log-probability sent for minus infinity, which JSON cannot represent."""

_BYTES: Final = re.compile(r"bytes:(\\x[0-9a-f]{2})+")

Position = Mapping[int, Logprob]


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Position | None],
    *,
    offset: int,
    as_ids: bool,
    spell: Callable[[int], bytes] | None = None,
) -> dict[str, Any]:
    """Return the `logprobs` of a completion choice; `offset` is where its text starts.

    `spell` gives the bytes of a token without log-probability: the first one of an echoed prompt.
    A part of a character is spelled as its bytes, as by OpenAI: `bytes:\\xe2\\x80`.
    """
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token_id, position in zip(token_ids, positions, strict=False):
        own = position.get(token_id) if position else None
        if own is None and spell is not None and not as_ids:
            token = _spelling(spell(token_id))
        else:
            token = _key(token_id, own, as_ids)
        tokens.append(token)
        values.append(None if own is None else _finite(own.logprob))
        tops.append(_by_text(position, as_ids) if position else None)
        offsets.append(offset)
        offset += num_chars(token)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def num_chars(token: str) -> int:
    """Return the number of characters that begin in a token of a completion."""
    if _BYTES.fullmatch(token) is None:
        return len(token)
    return sum(int(byte, 16) & 0xC0 != 0x80 for byte in token.split(r"\x")[1:])


def chat_logprobs(
    token_ids: Sequence[int], positions: Sequence[Position], *, num_top: int, as_ids: bool
) -> dict[str, Any]:
    """Return the `logprobs` of a chat choice, the `num_top` best tokens at each position."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=False):
        best = sorted(position.items(), key=lambda item: -item[1].logprob)[:num_top]
        own = position.get(token_id)
        entry = _chat_token(token_id, own, as_ids)
        content.append(
            {**entry, "top_logprobs": [_chat_token(i, logprob, as_ids) for i, logprob in best]}
        )
    return {"content": content, "refusal": None}


def prompt_logprobs(positions: Sequence[Position | None] | None) -> list[Any] | None:
    """Return prompt log-probabilities as in vLLM: one object per position."""
    if positions is None:
        return None
    return [
        position
        and {
            str(i): {
                "logprob": _finite(entry.logprob),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for i, entry in position.items()
        }
        for position in positions
    ]


def _chat_token(token_id: int, entry: Logprob | None, as_ids: bool) -> dict[str, Any]:
    text = _text(token_id, entry, as_ids)
    value = LOWEST if entry is None else _finite(entry.logprob)
    data = None if entry is None else entry.token_bytes
    data = text.encode("utf-8", "replace") if data is None else data
    return {"token": text, "logprob": value, "bytes": list(data)}


def _by_text(position: Position, as_ids: bool) -> dict[str, float]:
    """Return log-probabilities by text; a further token of the same text is named by its id."""
    found: dict[str, float] = {}
    for token_id, entry in position.items():
        text = _key(token_id, entry, as_ids)
        text = f"token_id:{token_id}" if text in found else text
        found[text] = _finite(entry.logprob)
    return found


def _key(token_id: int, entry: Logprob | None, as_ids: bool) -> str:
    if as_ids or entry is None or entry.token_bytes is None:
        return _text(token_id, entry, as_ids)
    return _spelling(entry.token_bytes)


def _spelling(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _text(token_id: int, entry: Logprob | None, as_ids: bool) -> str:
    if as_ids or entry is None or entry.decoded_token is None:
        return f"token_id:{token_id}"
    return entry.decoded_token


def _finite(value: float) -> float:
    return max(value, LOWEST)
