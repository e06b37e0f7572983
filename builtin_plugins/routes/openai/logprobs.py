"""Log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from core.api import Logprob

LOWEST: Final = -9999.0
"""Log-probability sent for minus infinity, which JSON cannot represent."""

Position = Mapping[int, Logprob]


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Position | None],
    *,
    offset: int,
    as_ids: bool,
    spell: Callable[[int], str] | None = None,
) -> dict[str, Any]:
    """Return the `logprobs` of a completion choice; `offset` is where its text starts.

    `spell` gives the text of a token without log-probability: the first one of an echoed prompt.
    """
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token_id, position in zip(token_ids, positions, strict=False):
        own = position.get(token_id) if position else None
        if own is None and spell is not None and not as_ids:
            token = spell(token_id)
        else:
            token = _text(token_id, own, as_ids)
        tokens.append(token)
        values.append(None if own is None else _finite(own.logprob))
        tops.append(
            {_text(i, entry, as_ids): _finite(entry.logprob) for i, entry in position.items()}
            if position
            else None
        )
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


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
    return {"token": text, "logprob": value, "bytes": list(text.encode("utf-8", "replace"))}


def _text(token_id: int, entry: Logprob | None, as_ids: bool) -> str:
    if as_ids or entry is None or entry.decoded_token is None:
        return f"token_id:{token_id}"
    return entry.decoded_token


def _finite(value: float) -> float:
    return max(value, LOWEST)
