"""Reads the items of a request: those of Python callers, of parts of messages, and by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from builtin_plugins.features.multimodal.item_embeddings import embedded_items, has_embeddings
from builtin_plugins.features.multimodal.messages import RawItem
from builtin_plugins.features.multimodal.pixels import raw_item
from builtin_plugins.features.multimodal.settings import Settings
from builtin_plugins.routes.api import MediaSource, media_loaders, read_media
from core.api import InvalidRequest, Registry
from core.model_spec.tower import TowerFacts

DATA: Final = "multi_modal_data"
UUIDS: Final = "multi_modal_uuids"
PIL_PART: Final = "image_pil"
"""Type of vLLM's parts with an image of Pillow, of Python callers."""
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """The model of an offline caller, for media in messages."""

    registry: Registry
    served_names: Sequence[str]


class RequestItemReader:
    """Reads `multi_modal_data` and `multi_modal_uuids`, and the images of messages."""

    def __init__(self, facts: TowerFacts, settings: Settings, model: LocalModel) -> None:
        self._facts = facts
        self._settings = settings
        self._model = model

    def read_messages(self, messages: Messages) -> tuple[Messages, dict[str, Any]]:
        """Return an offline conversation for the renderer, and its items as prompt keys."""
        found = read_media(self._model, _with_pil_sources(messages))
        if not found.sources:
            return messages, {}
        data: dict[str, list[Any]] = {}
        for source in found.sources:
            data.setdefault(source.modality, []).append(source)
        return found.messages, {DATA: data}

    async def load(self, data: Any, client: str) -> Any:
        """Return `multi_modal_data` with the content of its media sources."""
        if not isinstance(data, Mapping):
            return data
        loaded = dict(data)
        for modality, values in data.items():
            sources = [value for value in _listed(values) if isinstance(value, MediaSource)]
            if not sources:
                continue
            loader = next(
                each for each in media_loaders(self._model.registry) if modality in each.modalities
            )
            found = await loader.load(sources, client=client, reserve=lambda num_bytes: None)
            items = iter(found.get(modality, ()))
            loaded[modality] = [
                next(items) if isinstance(value, MediaSource) else value
                for value in _listed(values)
            ]
        return loaded

    def items(self, data: Any, uuids: Any) -> list[RawItem]:
        """Return the items of a request, by modality. Raises `InvalidRequest`."""
        for name, value in ((DATA, data), (UUIDS, uuids)):
            if not isinstance(value, Mapping):
                raise InvalidRequest(name, f"got {type(value).__name__}; expected a dict.")
            for modality in value:
                if modality not in self._facts.placeholders:
                    known = ", ".join(self._facts.placeholders)
                    raise InvalidRequest(name, f"got {modality!r:.80}; this model reads: {known}.")
        found: list[RawItem] = []
        for modality in self._facts.placeholders:
            found += self._of_modality(modality, data.get(modality), uuids.get(modality))
        return found

    def _of_modality(self, modality: str, data: Any, uuids: Any) -> list[RawItem]:
        values = _listed(data)
        names = _listed(uuids)
        if names and values and len(names) != len(values):
            raise InvalidRequest(
                UUIDS,
                f"got {len(names)} for {len(values)} items of {modality!r}; expected one each.",
            )
        count = max(len(values), len(names))
        limit = self._settings.max_images
        if count > limit:
            raise self._too_many(modality, count)
        found: list[RawItem] = []
        for index in range(count):
            value = values[index] if values else None
            uuid = names[index] if names else None
            if uuid is not None and not isinstance(uuid, str):
                raise InvalidRequest(UUIDS, f"got {uuid!r:.80}; expected a text or None.")
            field = f"{DATA}.{modality}[{index}]"
            if isinstance(value, MediaSource):
                field = value.field
                uuid = value.uuid
                value = value.content
            if self._is_embedded(value):
                found += self._embedded(modality, value, field, uuid)
            else:
                found.append(raw_item(modality, value, field, uuid))
        if len(found) > limit:
            raise self._too_many(modality, len(found))
        return found

    def _is_embedded(self, value: Any) -> bool:
        enabled = self._settings.enable_embeddings
        return isinstance(value, Mapping) or (
            enabled and has_embeddings(value, self._facts.embedding_width)
        )

    def _embedded(self, modality: str, value: Any, field: str, uuid: str | None) -> list[RawItem]:
        width = self._facts.embedding_width
        if not self._settings.enable_embeddings or not width:
            needs = "with --enable-mm-embeds" if width else "and a model that takes them"
            raise InvalidRequest(
                field, f"got embeddings; expected an image, or an engine {needs}. Send the image."
            )
        limit = self._settings.max_embedding_bytes
        return embedded_items(modality, value, field, uuid, width, limit)

    def _too_many(self, modality: str, count: int) -> InvalidRequest:
        return InvalidRequest(
            f"{DATA}.{modality}",
            f"got {count} items; expected at most {self._settings.max_images} "
            "(--limit-mm-per-prompt). Send fewer.",
        )


def _with_pil_sources(messages: Messages) -> list[Any]:
    """Return the messages with a `MediaSource` for each part with an image of Pillow."""
    return [
        {**message, "content": _pil_sources(message["content"], i)}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for i, message in enumerate(messages)
    ]


def _pil_sources(content: list[Any], message: int) -> list[Any]:
    found = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != PIL_PART:
            found.append(part)
            continue
        field = f"messages[{message}].content[{i}].{PIL_PART}"
        image = part.get(PIL_PART)
        if not hasattr(image, "tobytes") or not hasattr(image, "convert"):
            raise InvalidRequest(
                field, f"got {type(image).__name__}; expected an image of Pillow. Correct it."
            )
        found.append(MediaSource("image", field, uuid=part.get("uuid"), content=image))
    return found


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
