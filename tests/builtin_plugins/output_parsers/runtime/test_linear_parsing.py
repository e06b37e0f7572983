"""Parsing time is linear in the length of the worst inputs of each family."""

from __future__ import annotations

import gc
import time

import pytest

from builtin_plugins.output_parsers.testing import Reader
from tests.builtin_plugins.output_parsers.runtime.output_cases import (
    FORMATS,
    KINDS,
    cases_of,
    families,
    reader_of,
)
from tests.builtin_plugins.output_parsers.runtime.output_variations import markers_of, variations

PARSERS = [(kind, name) for kind in KINDS for found in families(kind) for name in found.parsers]
MAX_RATIO = 12
"""Maximum time ratio of an input to a tenth of it."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "parser"), PARSERS)
def test_parsing_time_is_linear_for_worst_inputs(kind: str, parser: str) -> None:
    reader, units = worst(kind, parser, 10_000)
    for unit in units[:3]:
        ratios: list[float] = []
        while not ratios or (
            min(ratios) > MAX_RATIO and len(ratios) < 4
        ):  # other processes cost time too
            ratios.append(took_s(reader, unit, 1_000_000) / took_s(reader, unit, 100_000))
        assert min(ratios) <= MAX_RATIO, f"{unit!r}: {ratios}"


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "qwen3_coder"])
def test_parsing_time_is_linear_for_streamed_calls(parser: str) -> None:
    reader, units = worst("tool_parsers", parser, 10_000)
    begins = {"qwen3_coder": "<function=f><parameter=a>"}.get(
        parser, '<tool_call>{"name": "f", "parameters": {"a": '
    )
    for unit in [*units[:2], '"\\\\u', "1", " ", "[", '{"a":', '["x\\ud83d",']:
        ratios: list[float] = []
        while not ratios or (min(ratios) > MAX_RATIO and len(ratios) < 4):
            long, short = (
                took_s(reader.stream_calls, unit, size, begins) for size in (1_000_000, 100_000)
            )
            ratios.append(long / short)
        assert min(ratios) <= MAX_RATIO, f"{unit!r}: {ratios}"


def worst(kind: str, parser: str, num_chars: int) -> tuple[Reader, list[str]]:
    """Return a parser and its slowest repeated inputs: malformed cases, variations and markers."""
    cases = [case for case in cases_of(kind, parser) if 0 < len(case.text) < 600]
    reader = reader_of(kind, parser, cases[0])
    markers = markers_of(FORMATS[kind][parser])
    units = [case.text for case in cases if case.malformed]
    units += [text for _, text in variations(cases[0].text, markers)]
    units += [
        f"{marker}{more}" for marker in markers for more in ("", '{"a": "', "[", "<", " ", "f(a='")
    ]
    return reader, sorted(units, key=lambda unit: took_s(reader, unit, num_chars), reverse=True)


def took_s(reader: Reader, unit: str, num_chars: int, begins: str = "") -> float:
    """Return the CPU time of parsing a text in chunks, with garbage collection off."""
    text = begins + unit * (num_chars // len(unit) + 1)
    gc.collect()
    gc.disable()
    started = time.thread_time()
    reader.read((text[at : at + 100], ()) for at in range(0, num_chars, 100))
    taken = time.thread_time() - started
    gc.enable()
    return taken
