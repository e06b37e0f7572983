"""Ten times as much of the worst that a family can be sent takes ten times as long."""

from __future__ import annotations

import gc
import time

import pytest
from formats import FORMATS, reader_of
from test_variations import cases_of
from variations import markers_of, variations
from written import KINDS, families

from core.testing.parsing import Reader

PARSERS = [(kind, name) for kind in KINDS for found in families(kind) for name in found.parsers]
MOST = 12
"""Times as long as for a tenth of it."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "parser"), PARSERS)
def test_a_megabyte_of_the_worst_takes_at_most_twelve_times_what_a_tenth_takes(
    kind: str, parser: str
) -> None:
    reader, units = worst(kind, parser, 10_000)
    for unit in units[:3]:
        ratios: list[float] = []
        while not ratios or (
            min(ratios) > MOST and len(ratios) < 4
        ):  # other programs on the machine cost time as well
            ratios.append(took_s(reader, unit, 1_000_000) / took_s(reader, unit, 100_000))
        assert min(ratios) <= MOST, f"{unit!r}: {ratios}"


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "qwen3_coder"])
def test_so_it_does_where_calls_are_told_in_pieces(parser: str) -> None:
    reader, units = worst("tool_parsers", parser, 10_000)
    begins = {"qwen3_coder": "<function=f><parameter=a>"}.get(
        parser, '<tool_call>{"name": "f", "parameters": {"a": '
    )
    for unit in [*units[:2], '"\\\\u', "1", " ", "[", '{"a":', '["x\\ud83d",']:
        ratios: list[float] = []
        while not ratios or (min(ratios) > MOST and len(ratios) < 4):
            long, short = (
                took_s(reader.in_pieces, unit, size, begins) for size in (1_000_000, 100_000)
            )
            ratios.append(long / short)
        assert min(ratios) <= MOST, f"{unit!r}: {ratios}"


def worst(kind: str, parser: str, num_chars: int) -> tuple[Reader, list[str]]:
    """Return a parser, and what takes it longest when it is repeated: all that was seen, its
    variations, its markers.
    """
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
    """Return the processor time of reading a text in pieces, with no time for collecting the test's
    own garbage.
    """
    text = begins + unit * (num_chars // len(unit) + 1)
    gc.collect()
    gc.disable()
    started = time.thread_time()
    reader.read((text[at : at + 100], ()) for at in range(0, num_chars, 100))
    taken = time.thread_time() - started
    gc.enable()
    return taken
