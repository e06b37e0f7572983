"""Encoded pictures for tests: small ones, and hostile files. All are made here; none are stored."""

from __future__ import annotations

import base64
import struct
import zlib
from functools import cache
from io import BytesIO
from typing import Any

from PIL import Image


def picture(
    size: tuple[int, int] = (8, 6), mode: str = "RGB", colour: Any = None, **saving: Any
) -> bytes:
    """Return an encoded picture of one colour, by default a PNG."""
    red = {"RGB": (250, 10, 20), "RGBA": (250, 10, 20, 255), "CMYK": (0, 245, 235, 0)}.get(
        mode, 200
    )
    return encoded(Image.new(mode, size, red if colour is None else colour), **saving)


def encoded(image: Image.Image, **saving: Any) -> bytes:
    """Return an image as a file, by default a PNG."""
    out = BytesIO()
    image.save(out, **{"format": "PNG", **saving})
    return out.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    """Return a file as a data: URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a PNG chunk."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, body: bytes = b"", *more: bytes, bits: int = 8) -> bytes:
    """Return a PNG with this header, compressed rows and further chunks before them."""
    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            *more,
            chunk(b"IDAT", zlib.compress(body)),
            chunk(b"IEND", b""),
        )
    )


def gif(width: int, height: int, frame: tuple[int, int] | None = None) -> bytes:
    """Return a GIF with a screen and a frame of these sizes, and hardly any pixels."""
    frame_width, frame_height = frame or (width, height)
    return b"".join(
        (
            b"GIF89a",
            struct.pack("<HHBBB", width, height, 0x80, 0, 0),
            b"\0\0\0\xff\xff\xff",
            b",",
            struct.pack("<HHHHB", 0, 0, frame_width, frame_height, 0),
            b"\2\2\x44\1\0;",
        )
    )


def bmp(width: int, height: int) -> bytes:
    """Return the header of a BMP without pixels."""
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header


def webp_canvas(width: int, height: int) -> bytes:
    """Return a WebP with a canvas of this size and no frame."""
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + sizes
    return b"RIFF" + struct.pack("<I", len(body)) + body


def jpeg_with_size(width: int, height: int) -> bytes:
    """Return a JPEG with another size in its header."""
    data = picture(format="JPEG")
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def jpeg_with_segments(marker: int, payload: bytes, count: int) -> bytes:
    """Return a JPEG with further segments after its start."""
    data = picture(format="JPEG")
    segment = bytes((0xFF, marker)) + struct.pack(">H", len(payload) + 2) + payload
    return data[:2] + segment * count + data[2:]


def jpeg_of_many_scans(count: int) -> bytes:
    """Return a progressive JPEG that repeats its last scan."""
    data = picture((64, 64), format="JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    return data[:at] + data[at:-2] * count + data[-2:]


@cache
def hostile_files() -> dict[str, bytes]:
    """Return files that no image decoder should accept, by what is wrong with them."""
    good = picture((64, 48))
    photo = picture((64, 48), format="JPEG")
    web = picture((64, 48), format="WEBP")
    huge_exif = b"Exif\0\0" + b"MM\0*\0\0\0\x08\0\0\0\0\0\0" + b"\0" * 65000
    files = {
        "empty file": b"",
        "one byte": b"\x89",
        "only the signature of PNG": good[:8],
        "PNG cut in its header": good[:20],
        "PNG cut in its pixels": good[: len(good) - 30],
        "PNG without pixels": good[:33] + chunk(b"IEND", b""),
        "PNG with a wrong checksum": good[:40] + b"\xff\xff" + good[42:],
        "PNG without header": b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", zlib.compress(b"\0" * 10)),
        "PNG of 0x0": png(0, 0),
        "PNG of 0x5": png(0, 5),
        "PNG of 5x0": png(5, 0),
        "PNG bomb of 30000x30000": png(30_000, 30_000, b"\0" * 1_000_000),
        "PNG of 2^31-1 squared": png(2**31 - 1, 2**31 - 1),
        "PNG of 2^32-1 squared": png(2**32 - 1, 2**32 - 1),
        "PNG line of 60 million pixels": png(60_000_000, 1),
        "PNG column of 60 million pixels": png(1, 60_000_000),
        "PNG with an invalid filter": png(2, 2, b"\x09" + b"\0" * 6 + b"\x09" + b"\0" * 6),
        "PNG with pixels that are no zlib": png(4, 4).replace(zlib.compress(b""), b"\0" * 8),
        "PNG with a text bomb": png(
            2, 2, b"\0" * 14, chunk(b"zTXt", b"a\0\0" + zlib.compress(b"\0" * 80_000_000, 9))
        ),
        "PNG with a colour profile bomb": png(
            2, 2, b"\0" * 14, chunk(b"iCCP", b"a\0\0" + zlib.compress(b"\0" * 80_000_000, 9))
        ),
        "PNG with an invalid bit depth": png(2, 2, b"\0" * 14, bits=7),
        "PNG with 2 MB of EXIF": png(
            2, 2, b"\0" * 14, chunk(b"eXIf", b"MM\0*" + b"\0" * 2_000_000)
        ),
        "JPEG of only the signature": photo[:3],
        "JPEG cut in its tables": photo[:100],
        "JPEG cut in its pixels": photo[: len(photo) - 40],
        "JPEG of 0x0": jpeg_with_size(0, 0),
        "JPEG bomb of 65535x65535": jpeg_with_size(65_535, 65_535),
        "JPEG without a frame": b"\xff\xd8\xff\xe0\0\x10" + b"\0" * 14 + b"\xff\xd9",
        "JPEG of endless fill bytes": b"\xff\xd8" + b"\xff" * 4_000_000,
        "JPEG with segments of length 0": b"\xff\xd8" + b"\xff\xe1\0\0" * 10_000,
        "JPEG of a million segments": b"\xff\xd8" + b"\xff\xe1\0\2" * 1_000_000,
        "JPEG of 2 million markers": b"\xff\xd8" + b"\xff\xd0" * 2_000_000,
        "JPEG with 2 MB of EXIF": jpeg_with_segments(0xE1, huge_exif, 31),
        "JPEG of 5000 scans": jpeg_of_many_scans(5000),
        "GIF of only the signature": b"GIF89a",
        "GIF of 0x0": gif(0, 0),
        "GIF bomb of 65535x65535": gif(65_535, 65_535),
        "GIF with a frame larger than its screen": gif(4, 4, (65_535, 65_535)),
        "GIF without a frame": gif(4, 4)[:19] + b";",
        "GIF cut in its pixels": picture((64, 48), "P", format="GIF")[:30],
        "BMP of only the signature": b"BM",
        "BMP of 0x0": bmp(0, 0),
        "BMP bomb of 100000x100000": bmp(100_000, 100_000),
        "BMP of negative width": bmp(-5, 5),
        "BMP with height -2^31": bmp(5, -(2**31)),
        "BMP without pixels": bmp(64, 64),
        "WebP of only the signature": web[:12],
        "WebP cut in its pixels": web[: len(web) - 20],
        "WebP bomb of 16384x16384": webp_canvas(16_384, 16_384),
        "WebP bomb of 2^24 squared": webp_canvas(2**24, 2**24),
        "WebP without a frame": webp_canvas(8, 8),
        "WebP of zeros": web[:16] + b"\0" * (len(web) - 16),
        "RIFF that is WAVE": b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + b"\0" * 28,
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>',
        "SVG with an entity bomb": b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a "aaaa">]>'
        b"<svg>&a;&a;</svg>",
        "SVG that names a file": b'<svg><image href="file:///etc/passwd"/></svg>',
        "page of HTML": b"<!DOCTYPE html><html><body>no picture</body></html>",
        "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "TIFF": encoded(Image.new("L", (4, 4)), format="TIFF"),
        "icon": encoded(Image.new("RGB", (16, 16)), format="ICO"),
        "Photoshop file": b"8BPS\0\1" + b"\0" * 40,
        "PPM": b"P6 9 9 255\n" + b"\0" * 243,
        "FITS": b"SIMPLE  =                    T" + b" " * 50,
        "MP4": b"\0\0\0\x18ftypmp42" + b"\0" * 40,
        "AVIF": b"\0\0\0\x20ftypavif" + b"\0" * 40,
        "MP3": b"ID3\4" + b"\0" * 40,
        "ZIP": b"PK\3\4" + b"\0" * 40,
        "ZIP before a PNG": b"PK\3\4" + b"\0" * 40 + good,
        "page of HTML before a PNG": b"<html>" + good,
        "PDF before a JPEG": b"%PDF-1.7\n" + photo,
        "gzip bomb": zlib.compress(b"\0" * 1_000_000, wbits=31),
        "pickle": b"\x80\4\x95\5\0\0\0\0\0\0\0]\x94.",
        "safetensors": struct.pack("<Q", 2) + b"{}",
        "text": b"just text " * 20,
        "zeros": b"\0" * 4096,
        "line breaks before a PNG": b"\n\n" + good,
        "21 MB": good + b"\0" * (21 * 2**20),
    }
    assert len(files) >= 60
    return files
