"""Chooses what a step encodes for chunks of later ones.

These are items of chunks that wait for them, next to decode rows, and items of waiting requests.
Next to decode rows, a large item is encoded in parts, one a step: no step takes its whole time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec.structs import replace

from builtin_plugins.features.multimodal.encoder_cache import EncoderCache
from builtin_plugins.features.multimodal.messages import AheadItem, RequestItems
from builtin_plugins.features.multimodal.settings import Settings

MAX_LOOK_AHEAD: Final = 16
"""Waiting requests with items that are encoded ahead."""
MIXED_STEP_TOKENS: Final = 256
"""Embeddings that a step with decode rows encodes, unless a single item is larger."""


class EncodeAhead:
    """The deferred items of the step under construction, and the item that is encoded in parts."""

    def __init__(self, settings: Settings, cache: EncoderCache) -> None:
        self._settings: Final = settings
        self._cache: Final = cache
        self._deferred: dict[bytes, AheadItem] = {}
        self._in_parts: AheadItem | None = None
        """An item of which a part was encoded; it is not in the cache."""
        self.given_up: list[bytes] = []
        """Items in parts that are no longer encoded, since the last step."""

    def begin(self) -> None:
        """Forget the deferred items of a step, which may have been given up."""
        self._deferred.clear()

    def defer(self, item: AheadItem) -> None:
        """Have an item encoded in this step, for a chunk of a later one."""
        self._deferred[item.item.content_hash] = item

    def released(self, holder: str) -> None:
        """Give up the item in parts if its tensors are released."""
        if self._in_parts is not None and self._in_parts.holder == holder:
            self.given_up.append(self._in_parts.item.content_hash)
            self._in_parts = None

    def choose(
        self, used: int, needed: int, waiting: Iterable[RequestItems], *, is_mixed: bool
    ) -> list[AheadItem]:
        """Return what the step encodes ahead, next to `used` embeddings of others.

        It fits the cache next to the `needed` ones of the step. `waiting` are the items of waiting
        requests; `is_mixed`: the step has decode rows.
        """
        started = self._in_parts
        if started is not None and started.item.content_hash in self._cache:
            started = self._in_parts = None  # a chunk needed it at once
        if started is not None:
            found = [] if used else self._next_part(started, needed)
        else:
            found = self._of_deferred(used, needed) or self._of_waiting(used, waiting, is_mixed)
        self._deferred.clear()
        return found

    def _of_deferred(self, used: int, needed: int) -> list[AheadItem]:
        found: list[AheadItem] = []
        limit = min(self._settings.step_tokens, MIXED_STEP_TOKENS)
        for key, ahead in self._deferred.items():
            size = ahead.item.num_tokens
            if key in self._cache:
                continue
            if (used and used + size > limit) or needed + size > self._settings.cache_tokens:
                break
            used += size
            needed += size
            found += self._begin(ahead, needed - size, is_mixed=True)
            if self._in_parts is not None:
                break
        return found

    def _of_waiting(
        self, used: int, waiting: Iterable[RequestItems], is_mixed: bool
    ) -> list[AheadItem]:
        """Return the first item of a waiting request, if budget and cache have room for it.

        At most one a step, and none that was encoded before.
        """
        for items in islice(waiting, MAX_LOOK_AHEAD):
            for item in items.items:
                key = item.content_hash
                size = item.num_tokens
                if key in self._cache or self._cache.was_encoded(key):
                    continue
                if not self._cache.fits(size) or used + size > self._settings.step_tokens:
                    return []
                ahead = AheadItem(items.folder, items.holder, item)
                return self._begin(ahead, 0, is_mixed=is_mixed and not used)
        return []

    def _begin(self, ahead: AheadItem, needed: int, *, is_mixed: bool) -> list[AheadItem]:
        """Return an item, or its first part."""
        slice_tokens = self._settings.slice_tokens
        if is_mixed and slice_tokens:
            num_parts = -(-ahead.item.num_tokens // slice_tokens)
            return self._next_part(replace(ahead, part=0, num_parts=num_parts), needed)
        return self._next_part(replace(ahead, part=0), needed)

    def _next_part(self, ahead: AheadItem, needed: int) -> list[AheadItem]:
        """Return the next part of an item; the last one waits until the item fits the cache."""
        item = ahead.item
        following = replace(ahead, part=ahead.part + 1)
        if following.is_last:
            if needed and needed + item.num_tokens > self._settings.cache_tokens:
                return []
            self._cache.add(item.content_hash, item.num_tokens)
        self._in_parts = None if following.is_last else following
        return [following]
