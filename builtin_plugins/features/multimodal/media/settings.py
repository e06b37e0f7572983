"""Settings of media in requests: allowed sources, bounds, and how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from builtin_plugins.features.multimodal.media.addresses import AllowedSources
from builtin_plugins.features.multimodal.media.limits import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_PIXELS,
    WHITE,
    MediaLimits,
)
from core.api import ConfigError

IMAGE: Final = "image"
DEFAULT_COUNT: Final = 100
"""Default largest number of images in a request."""
DEFAULT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """The options of media, validated."""

    limits: MediaLimits
    sources: AllowedSources
    local_path: Path | None
    """Folder of files that requests may name; None: no files."""
    timeout_s: float
    """Time limit of one fetch."""
    max_images: int
    """Largest number of images in a request."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> MediaSettings:
        """Read the options. Raises `ConfigError`."""
        folder = options.get("allowed_local_media_path") or ""
        path = Path(folder).expanduser() if folder else None
        if path is not None and not path.is_dir():
            raise ConfigError(
                f"--allowed-local-media-path: got {folder!r}; expected an existing folder. "
                "Correct it."
            )
        return cls(
            limits=MediaLimits(
                max_bytes=options.get("max_media_bytes") or DEFAULT_MAX_BYTES,
                max_pixels=options.get("max_media_pixels") or DEFAULT_MAX_PIXELS,
                background=_background(options.get("media_io_kwargs") or {}),
            ),
            sources=AllowedSources(options.get("allowed_media_domains") or ()),
            local_path=path,
            timeout_s=options.get("media_fetch_timeout") or DEFAULT_TIMEOUT_S,
            max_images=max_images(options.get("limit_mm_per_prompt") or {}),
        )


def max_images(given: Mapping[str, Any]) -> int:
    """Return the number of images that `--limit-mm-per-prompt` allows. Raises `ConfigError`.

    A limit is a number, or an object with a `count`.
    """
    counts = {}
    for modality, limit in given.items():
        count = limit.get("count", DEFAULT_COUNT) if isinstance(limit, Mapping) else limit
        if type(count) is not int or count < 0:
            raise ConfigError(
                f"--limit-mm-per-prompt.{modality}: got {count!r}; expected a number from 0. "
                "Correct it."
            )
        counts[modality] = count
    count = counts.pop(IMAGE, DEFAULT_COUNT)
    for modality, other in counts.items():
        if other:
            raise ConfigError(
                f"--limit-mm-per-prompt.{modality}: got {other}; expected 0, since the engine "
                "takes images only. Remove it."
            )
    return count


def _background(given: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the colour under transparent pixels, of `--media-io-kwargs`."""
    image = given.get(IMAGE) or {}
    unknown = [name for name in given if name != IMAGE]
    if isinstance(image, Mapping):
        unknown += [f"{IMAGE}.{name}" for name in image if name != "rgba_background_color"]
    if unknown or not isinstance(image, Mapping):
        raise ConfigError(
            f"--media-io-kwargs: got {', '.join(unknown) or repr(image)}; expected "
            '{"image": {"rgba_background_color": [255, 255, 255]}}. Remove it.'
        )
    colour = image.get("rgba_background_color", WHITE)
    if (
        not isinstance(colour, list | tuple)
        or len(colour) != 3
        or not all(type(part) is int and 0 <= part <= 255 for part in colour)
    ):
        raise ConfigError(
            f"--media-io-kwargs.image.rgba_background_color: got {colour!r:.80}; expected three "
            "numbers from 0 to 255. Correct it."
        )
    red, green, blue = colour
    return red, green, blue
