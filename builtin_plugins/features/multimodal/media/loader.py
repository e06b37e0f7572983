"""Loads the media of requests in the frontend: from URLs, base64 and files, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from builtin_plugins.features.multimodal.media.addresses import ACTION
from builtin_plugins.features.multimodal.media.checks import check_image
from builtin_plugins.features.multimodal.media.encoded import read_base64, read_data_url
from builtin_plugins.features.multimodal.media.fetch import Fetcher, Resolve
from builtin_plugins.features.multimodal.media.items import MediaItem
from builtin_plugins.features.multimodal.media.local_files import read_local_file
from builtin_plugins.features.multimodal.media.settings import IMAGE, MediaSettings
from builtin_plugins.routes.api import MediaSource
from core.api import InvalidRequest

REQUEST_FACTOR: Final = 4
"""Bytes and pixels of all images of a request, as a multiple of what one may have."""
_QUICK_CHARS: Final = 2**16
"""Length of base64 text, or of a file, that is read without a thread."""


class ImageLoader:
    """The media loader of this process: images."""

    def __init__(self, settings: MediaSettings, resolve: Resolve | None = None) -> None:
        self._settings = settings
        limits = settings.limits
        self._fetcher = Fetcher(settings.sources, limits.max_bytes, settings.timeout_s, resolve)
        self.modalities: Collection[str] = ()
        """Modalities that the served model takes; set once the engine has started."""

    def check(self, sources: Sequence[MediaSource]) -> None:
        """Raise `InvalidRequest` for more images than a request may have."""
        maximum = self._settings.max_images
        if len(sources) > maximum:
            raise InvalidRequest(
                sources[maximum].field,
                f"got {len(sources)} images in one request; expected at most {maximum} "
                "(--limit-mm-per-prompt). Send fewer.",
            )

    async def load(
        self, sources: Sequence[MediaSource], *, client: str, reserve: Callable[[int], None]
    ) -> Mapping[str, list[MediaItem | MediaSource]]:
        """Return the images of a request, in their order. Raises `InvalidRequest`.

        Sources with their content stay as they are.
        """
        self.check(sources)
        totals = _Totals(self._settings)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._load(source, client, reserve, totals))
                    for source in sources
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return {IMAGE: [task.result() for task in tasks]}

    async def _load(
        self,
        source: MediaSource,
        client: str,
        reserve: Callable[[int], None],
        totals: _Totals,
    ) -> MediaItem | MediaSource:
        field = source.field
        limits = self._settings.limits
        if source.content is not None:
            return source  # nothing to load
        if source.url is None and source.base64 is None:
            return MediaItem(source.modality, b"", field, source.uuid)
        data = await self._read(source, client, reserve)
        if len(data) <= _QUICK_CHARS:
            num_pixels = check_image(data, field, limits)
        else:
            num_pixels = await asyncio.to_thread(check_image, data, field, limits)
        totals.add(len(data), num_pixels, field)
        return MediaItem(source.modality, data, field, source.uuid)

    async def _read(
        self, source: MediaSource, client: str, reserve: Callable[[int], None]
    ) -> bytes:
        """Return the encoded file of a source."""
        field = source.field
        max_bytes = self._settings.limits.max_bytes
        text = source.base64 if source.base64 is not None else source.url or ""
        if source.base64 is not None or text[:5].lower() == "data:":
            read = read_base64 if source.base64 is not None else read_data_url
            if len(text) <= _QUICK_CHARS:
                return read(text, field, max_bytes)
            return await asyncio.to_thread(read, text, field, max_bytes)
        scheme = text[:20].partition(":")[0].lower()
        if scheme in ("http", "https"):
            return await self._fetcher.fetch(text, field, reserve, client)
        if text[:7].lower() == "file://":
            root = self._settings.local_path
            return await asyncio.to_thread(read_local_file, text, root, field, max_bytes)
        raise InvalidRequest(
            field, f"got {text[:40]!r}; expected a data:, https: or http: URL. {ACTION}"
        )


class _Totals:
    """Bytes and pixels of a request's images."""

    def __init__(self, settings: MediaSettings) -> None:
        self._bytes = REQUEST_FACTOR * settings.limits.max_bytes
        self._pixels = REQUEST_FACTOR * settings.limits.max_pixels

    def add(self, num_bytes: int, num_pixels: int, field: str) -> None:
        """Count one image. Raises `InvalidRequest` if all together are too large."""
        self._bytes -= num_bytes
        self._pixels -= num_pixels
        if self._bytes < 0 or self._pixels < 0:
            raise InvalidRequest(
                field,
                "got images that are too large together; expected at most "
                f"{REQUEST_FACTOR} times --max-media-bytes and --max-media-pixels in a request. "
                "Send fewer or smaller ones.",
            )
