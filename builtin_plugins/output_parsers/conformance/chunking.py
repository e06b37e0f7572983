"""What tool and reasoning parsers have in common."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from builtin_plugins.output_parsers.testing import Reader, chunkings, hostile_texts

_SHORT: Final = 300
"""Texts up to this length are cut in many ways; longer ones only read."""
_CHARS: Final = 1_600
_TIMES_LONGER: Final = 8
_TIMES_SLOWER: Final = 3 * _TIMES_LONGER


def assert_agreement(reader: Reader, markers: Sequence[str]) -> None:
    """Assert that hostile texts say the same in every chunking, with markers as text and as special
    tokens.
    """
    for special in (frozenset[str](), frozenset(markers)):
        one = replace(reader, special=special)
        for seed, text in enumerate(hostile_texts(markers)):
            if len(text) > _SHORT:
                continue
            whole = one.read([one.piece(text)])
            for chunks in chunkings(text, special, seed, count=6):
                found = one.read(one.piece(chunk) for chunk in chunks)
                assert found == whole, (
                    f"in the pieces {chunks!r}\nthe text says {found}\nand as a whole {whole}"
                )


def assert_survival(reader: Reader, markers: Sequence[str]) -> None:
    """Assert that no text makes the parser raise."""
    for special in (frozenset[str](), frozenset(markers)):
        one = replace(reader, special=special)
        for text in hostile_texts(markers, seed=1):
            try:
                one.read([one.piece(text)])
            except Exception as error:
                raise AssertionError(
                    f"{type(error).__name__}: {error} for the text {text[:200]!r}"
                ) from error


def assert_linear(reader: Reader, markers: Sequence[str]) -> None:
    """Assert that time grows with the length of the text, not with its square, whole and in small
    pieces.
    """
    for unit in ("word ", *markers, *(f'{marker}{{"name": "' for marker in markers)):
        for width in (1 << 20, 16):
            ratio = min(_ratios(reader, unit, width))
            assert ratio < _TIMES_SLOWER, (
                f"{_TIMES_LONGER} times {unit!r} takes {ratio:.0f} times as long."
            )


def _ratios(reader: Reader, unit: str, width: int) -> Iterator[float]:
    """Yield how many times longer a longer text takes; texts too slow are tried again, several
    times as long.

    A busy machine passes by, and what grows faster than the text only gets worse.
    """
    for scale in (1, 2, 4):
        lengths = (_CHARS * scale, _CHARS * scale * _TIMES_LONGER)
        short, long = (unit * (length // len(unit)) for length in lengths)
        least = min(_took(reader, short, width) for _ in range(3))
        for _ in range(3):
            yield (ratio := _took(reader, long, width) / least)
            if ratio < _TIMES_SLOWER:
                return


def _took(reader: Reader, text: str, width: int) -> float:
    """Return the processor time of a reading: other programs do not count."""
    started = time.thread_time()
    reader.read((text[at : at + width], ()) for at in range(0, len(text), width))
    return time.thread_time() - started
