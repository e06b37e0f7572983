"""The alphabet of byte-level BPE."""

from __future__ import annotations


def byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character in byte-level BPE spelling.

    Printable characters stand for themselves, those from U+0100 on for the other bytes.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }
