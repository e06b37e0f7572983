"""An encoded image of a request, as it goes from the frontend to the input processor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MediaItem:
    """One encoded file."""

    modality: str
    """Kind of content: `image`."""
    data: bytes
    """The encoded file; empty if the request only has its `uuid`."""
    field: str
    """Where it is in the request, for errors: `messages[0].content[1].image_url`."""
    uuid: str | None = None
    """The client's name of the content."""
