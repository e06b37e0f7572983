"""The scripted model's tokenizer: bytes, ChatML's special tokens, and configured tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from builtin_plugins.tokenizers.api import ChunkedTokenizer
from core.api import EngineConfig
from core.api.models import ModelSource
from core.api.serving import RenderedText

END_OF_TEXT: Final = 256
START_OF_TURN: Final = 257
END_OF_TURN: Final = 258
_CHATML: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

ESCAPE: Final = b"\x1b"
"""Escape that the template writes before the `|` of a `<|` in a message, and before itself.

So a message that spells a special token neither ends its turn nor loses it.
"""

CHAT_TEMPLATE: Final = r"""
{%- macro plain(content) -%}
{{- (content or '') | replace('\x1b', '\x1b\x1b') | replace('<|', '<\x1b|') -}}
{%- endmacro -%}
{%- if tools -%}
{{- '<|im_start|>system\n# Tools\n' -}}
{%- for tool in tools -%}
{{- plain(tool | tojson) + '\n' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{{- plain(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{{- '\n<tool_call>\n' + plain(call.function | tojson) + '\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
"""


class ScriptedTokenizer:
    """Byte tokens and whole-text tokens; encoding and decoding preserve every text."""

    def __init__(
        self, source: ModelSource, config: EngineConfig | None = None, markers: Iterable[str] = ()
    ) -> None:
        script = source.hf_config
        special = dict.fromkeys((*_CHATML, *script.special_tokens))
        visible = [
            text for text in dict.fromkeys((*script.markers, *markers)) if text not in special
        ]
        self._texts: dict[int, str] = {256 + i: text for i, text in enumerate((*special, *visible))}
        self._ids = {text: token for token, text in self._texts.items()}
        self._special = _splitter(special)
        self._not_chatml = _splitter(text for text in special if text not in _CHATML)
        self._visible = _splitter(visible)
        self.vocab_size = 256 + len(self._texts)
        self.eos_token_id: int | None = END_OF_TURN
        self.special_ids = frozenset(self._ids[text] for text in special)
        self.control_texts = dict.fromkeys(special, True)
        self.special_tokens_map = {"eos_token": _CHATML[2], "pad_token": _CHATML[0]}
        self.chat_template: str | None = CHAT_TEMPLATE

    def long_texts(self) -> ChunkedTokenizer:
        """Return what tokenizes long texts in chunks."""
        return ChunkedTokenizer(self)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; adds no special tokens."""
        return self._encode(text.encode("utf-8", "surrogatepass"), (self._special, self._visible))

    def encode_rendered(self, text: RenderedText, add_special_tokens: bool = False) -> list[int]:
        """Return token ids; special tokens that messages spell are bytes."""
        plain = str(text)
        ids: list[int] = []
        end = 0
        for start, stop in text.control_spans:
            ids += self._encode(plain[end:start].encode(), (self._visible,))
            ids.append(self._ids[plain[start:stop]])
            end = stop
        return ids + self._encode(plain[end:].encode(), (self._visible,))

    def encode_visible(self, text: bytes) -> list[int]:
        """Return token ids with ChatML's tokens as bytes, so that the text ends no turn."""
        return self._encode(text, (self._not_chatml, self._visible))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return text; invalid UTF-8 becomes U+FFFD."""
        if skip_special_tokens:
            ids = [i for i in ids if i not in self.special_ids]
        return self.to_bytes(ids).decode("utf-8", "replace")

    def to_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of the ids."""
        return b"".join(bytes((i,)) if i < 256 else self._texts[i].encode() for i in ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one id."""
        return self.to_bytes([token_id])

    def token_text(self, token_id: int) -> str:
        """Return a printable byte as itself, another byte as <0xXX>, other tokens as their text."""
        if token_id >= 256:
            return self._texts[token_id]
        return chr(token_id) if 32 <= token_id < 127 else f"<0x{token_id:02X}>"

    def _encode(self, text: bytes, splitters: Sequence[re.Pattern[bytes] | None]) -> list[int]:
        """Split at the texts of the first splitter, then split the rest with the next ones."""
        if not splitters:
            return list(text)
        first, *others = splitters
        if first is None:
            return self._encode(text, others)
        ids: list[int] = []
        for i, part in enumerate(first.split(text)):
            ids.extend([self._ids[part.decode()]] if i % 2 else self._encode(part, others))
        return ids


def _splitter(texts: Iterable[str]) -> re.Pattern[bytes] | None:
    """Return a pattern that splits at some texts, longest first; None without texts."""
    encoded = sorted((text.encode() for text in texts), key=len, reverse=True)
    return re.compile(b"(" + b"|".join(map(re.escape, encoded)) + b")") if encoded else None
