"""Media in requests: what routes read from bodies, and the feature that loads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from core.api import Registry


@dataclass(frozen=True, slots=True)
class MediaSource:
    """Where the content of one media part comes from."""

    modality: str
    """Kind of content: `image`."""
    field: str
    """Path of the part in the request, for errors."""
    url: str | None = None
    """An http(s), data: or file: URL."""
    base64: str | None = None
    """The encoded file as base64 text, instead of a URL."""
    uuid: str | None = None
    """The client's name of the content; without any, it must be known."""
    content: Any = None
    """The content itself: an image of a Python caller, or a client's embeddings."""


class MediaLoader(Protocol):
    """Loads the media of requests."""

    @property
    def modalities(self) -> Collection[str]:
        """Modalities that the served model takes; none before the engine has started."""

    def check(self, sources: Sequence[MediaSource]) -> None:
        """Raise `InvalidRequest` for sources of a request that need not be loaded to be refused."""

    async def load(
        self, sources: Sequence[MediaSource], *, client: str, reserve: Callable[[int], None]
    ) -> Mapping[str, Any]:
        """Return the request's `multi_modal_data`. Raises `InvalidRequest` with a part's field.

        `client` is for fair sharing; `reserve` counts the bytes that are fetched.
        """


class MediaCounter(Protocol):
    """Counts the tokens of prompts with media."""

    whole_prompt: bool
    """Whether an item is a whole prompt, without any text and template."""

    async def count(self, prompt: Mapping[str, Any], *, client: str, cache_salt: str) -> int:
        """Return the number of tokens of a prompt with `multi_modal_data`.

        Raises `InvalidRequest`.
        """


def media_counters(registry: Registry) -> list[MediaCounter]:
    """Return this process's media counters; a feature adds its own when the engine has started."""
    made: list[MediaCounter] = registry.shared("media counters", list)
    return made


def media_loaders(registry: Registry) -> list[MediaLoader]:
    """Return this process's media loaders; a feature adds its own when the frontend starts."""
    made: list[MediaLoader] = registry.shared("media loaders", list)
    return made
