"""A long argument comes as it is written, in every family whose values do not wait for their end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from spellings import SPELLINGS
from test_spelled_calls import FORMATS, OSLO, REQUEST

from core.api import ArgumentsPiece, OutputParser, ParsedDelta

WHOLE = {"functiongemma", "gemma4", "lfm2", "llama4_pythonic", "minimax_m3", "olmo3", "pythonic"}
"""Families of which a value's end decides what it is: their calls are told when they are whole."""


@pytest.mark.parametrize("name", sorted({*SPELLINGS} - WHOLE))
def test_a_long_text_comes_as_it_is_written(name: str) -> None:
    note = "".join(f'line {i} of "it": {{x}} \\ \n' for i in range(40))
    text = SPELLINGS[name].write(("search", {"note": note + "end", "days": 3}), OSLO)
    chunks = [text[at : at + 20] for at in range(0, len(text), 20)]
    parser = OutputParser(replace(REQUEST, in_pieces=True), tools=FORMATS[name])
    found = [*map(parser.feed, chunks), parser.finish()]
    pieces = [piece for delta in found for piece in delta.pieces]
    assert (
        sum(isinstance(piece, ArgumentsPiece) and piece.index == 0 for piece in pieces)
        > len(note) // 40
    )
    calls = [(call.name, json.loads(call.arguments)) for call in ParsedDelta.joined(found).calls]
    assert calls == [("search", {"note": note + "end", "days": 3}), OSLO]
