"""Random images of a benchmark (`--dataset-name random-mm`): noise in sizes of given shares."""

from __future__ import annotations

import ast
import base64
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from core.api import ConfigError

if TYPE_CHECKING:
    import argparse
    from random import Random

NAME: Final = "random-mm"
BUCKETS: Final = "{(256, 256, 1): 0.5, (720, 1280, 1): 0.5}"
"""vLLM's default."""
MAX_SIDE: Final = 16_384


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the number and sizes of images, under vLLM's names."""
    add = group.add_argument
    add(
        "--random-mm-base-items-per-request",
        type=int,
        default=1,
        metavar="N",
        help="images of a random-mm request (default: 1)",
    )
    add(
        "--random-mm-num-mm-items-range-ratio",
        type=float,
        default=0.0,
        metavar="R",
        help="numbers of images are uniform in [N(1-R), N(1+R)] (default: 0, all equal)",
    )
    add(
        "--random-mm-bucket-config",
        default=BUCKETS,
        metavar="DICT",
        help=f"shares of sizes as (height, width, 1) (default: {BUCKETS})",
    )


def check_arguments(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for settings of images that cannot be used."""
    if getattr(args, "backend", None) != "openai-chat":
        raise ConfigError(
            f"--dataset-name: got {NAME}; expected --backend openai-chat with it, in `engine bench "
            "serve`. Set it."
        )
    count = args.random_mm_base_items_per_request
    if count < 0:
        raise ConfigError(
            f"--random-mm-base-items-per-request: got {count}; expected at least 0. Correct it."
        )
    ratio = args.random_mm_num_mm_items_range_ratio
    if not 0 <= ratio <= 1:
        raise ConfigError(
            f"--random-mm-num-mm-items-range-ratio: got {ratio:g}; expected 0 to 1. Correct it."
        )
    buckets(args.random_mm_bucket_config)


def buckets(text: str) -> dict[tuple[int, int], float]:
    """Return the shares of sizes (height, width). Raises `ConfigError`."""
    try:
        found: Any = ast.literal_eval(text)
        shares = {(height, width): share for (height, width, _), share in found.items()}
        frames = {frames for _, _, frames in found}
    except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError):
        shares = {}
        frames = set()
    sides = [side for size in shares for side in size]
    if (
        frames != {1}
        or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides)
        or not all(isinstance(share, int | float) and share >= 0 for share in shares.values())
        or not sum(shares.values()) > 0
    ):
        raise ConfigError(
            f"--random-mm-bucket-config: got {text!r:.100}; expected shares of images such as "
            f"{BUCKETS}. Correct it."
        )
    return shares


def random_images(args: argparse.Namespace, rng: Random) -> Iterator[tuple[str, ...]]:
    """Yield the images of one request after another, as data: URLs."""
    shares = buckets(args.random_mm_bucket_config)
    base = args.random_mm_base_items_per_request
    ratio = args.random_mm_num_mm_items_range_ratio
    while True:
        count = rng.randint(int(base * (1 - ratio)), int(base * (1 + ratio)))
        sizes = rng.choices(list(shares), weights=list(shares.values()), k=count)
        yield tuple(_image(height, width, rng) for height, width in sizes)


def _image(height: int, width: int, rng: Random) -> str:
    from PIL import Image  # lazy: for this dataset only

    out = BytesIO()
    noise = rng.randbytes(height * width * 3)
    Image.frombytes("RGB", (width, height), noise).save(out, format="JPEG")
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
