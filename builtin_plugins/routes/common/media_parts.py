"""Media parts of messages: read once for all protocols, and loaded by a feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from builtin_plugins.routes.media import (
    MediaLoader,
    MediaSource,
    media_counters,
    media_loaders,
)
from core.api import InvalidRequest, RequestOutput
from core.api.serving import ServedEngine

if TYPE_CHECKING:
    from core.api import Registry

IMAGE: Final = "image"
IMAGE_PARTS: Final = ("image_url", "input_image")
"""Types of OpenAI's parts with an image."""
EMBEDDINGS_PART: Final = "image_embeds"
"""Type of vLLM's parts with embeddings of an image."""
_DETAILS: Final = ("auto", "low", "high", "original")
_MAX_UUID_CHARS: Final = 256
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MediaMessages:
    """Messages with a part `{"type": "image"}` for each image, and where the images come from."""

    messages: Messages
    """The messages, without the images themselves."""
    sources: Sequence[MediaSource]
    """Sources in the order of the parts."""
    ignored: tuple[str, ...] = ()
    """Paths of fields that have no effect."""


class MediaEngine(Protocol):
    """What media need of an engine: its loaders and its name."""

    @property
    def registry(self) -> Registry:
        """The plugins of this process."""

    @property
    def served_names(self) -> Sequence[str]:
        """Names of the model."""


def served_modalities(engine: MediaEngine) -> frozenset[str]:
    """Return the modalities that the served model takes, in addition to text."""
    return frozenset(name for loader in _loaders(engine) for name in loader.modalities)


def read_media(engine: MediaEngine, messages: Sequence[Any]) -> MediaMessages:
    """Return the messages of a conversation, and their media.

    A part is OpenAI's, or a `MediaSource` that a protocol has read. Raises `InvalidRequest` for
    media that the model does not take.
    """
    sources: list[MediaSource] = []
    ignored: list[str] = []
    found: Messages = []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list):
            found.append(message)  # the renderer checks it
            continue
        parts = [
            read_part(part, f"messages[{i}].content[{j}]", ignored)
            for j, part in enumerate(content)
        ]
        own = [part for part in parts if isinstance(part, MediaSource)]
        sources += own
        as_plain = [
            {"type": part.modality} if isinstance(part, MediaSource) else part for part in parts
        ]
        found.append({**message, "content": as_plain} if own else message)
    served = served_modalities(engine)
    for source in sources:
        if source.modality not in served:
            part = source.field[: source.field.rfind("]") + 1]
            raise InvalidRequest(
                part or source.field,
                f"got an {source.modality}; expected text, since model "
                f"{engine.served_names[0]!r} takes no {source.modality}s. Remove it.",
            )
    for loader in _loaders(engine):
        loader.check([source for source in sources if source.modality in loader.modalities])
    return MediaMessages(found, sources, tuple(ignored))


async def load_media(
    engine: MediaEngine,
    sources: Sequence[MediaSource],
    *,
    client: str = "",
    reserve: Callable[[int], None] = lambda num_bytes: None,
) -> dict[str, Any]:
    """Return a request's `multi_modal_data`; empty without sources. Raises `InvalidRequest`.

    `reserve` counts the bytes that are fetched.
    """
    data: dict[str, Any] = {}
    for loader in _loaders(engine):
        own = [source for source in sources if source.modality in loader.modalities]
        if own:
            data |= await loader.load(own, client=client, reserve=reserve)
    return data


def media_prompt(ids: list[int], text: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's prompt: with media, its text is tokenized after the placeholders."""
    prompt: dict[str, Any] = {"prompt_token_ids": ids}
    return prompt | ({"prompt": text, "multi_modal_data": data} if data else {})


def are_whole_prompts(engine: MediaEngine, media: MediaMessages) -> bool:
    """Return whether messages have media that are prompts of their own."""
    counters = media_counters(engine.registry)
    return bool(media.sources) and any(counter.whole_prompt for counter in counters)


async def count_tokens(
    engine: ServedEngine, prompt: Mapping[str, Any], *, client: str, cache_salt: str
) -> int:
    """Return the number of tokens of a prompt with media. Raises `InvalidRequest`."""
    counter = media_counters(engine.registry)[0]  # a model with images has one
    return await counter.count(prompt, client=client, cache_salt=cache_salt)


async def releasing(
    outputs: AsyncIterator[RequestOutput], data: dict[str, Any]
) -> AsyncGenerator[RequestOutput]:
    """Yield the outputs; `data` is emptied at the first one, when the engine has read it.

    The answer may take long, and images are large.
    """
    try:
        async for output in outputs:
            data.clear()
            yield output
    finally:
        close = getattr(outputs, "aclose", None)
        if close is not None:
            await close()


def _loaders(engine: MediaEngine) -> Sequence[MediaLoader]:
    return media_loaders(engine.registry)


def read_part(part: Any, field: str, ignored: list[str] | None = None) -> Any:
    """Return the source of a media part, or any other part unchanged; `ignored` gets the path of
    a field without effect.
    """
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    if kind == IMAGE:
        raise InvalidRequest(
            field, "got a part of type 'image'; expected 'image_url'. Change its type."
        )
    if kind == EMBEDDINGS_PART:
        return _embeddings_source(part, field)
    if kind in IMAGE_PARTS:
        return _image_source(part, field, ignored)
    return part


def _embeddings_source(part: Mapping[str, Any], field: str) -> MediaSource:
    """Return the source of a part with embeddings, which a feature reads."""
    uuid = _checked_uuid(part.get("uuid"), field)
    content = part.get(EMBEDDINGS_PART)
    if not (isinstance(content, (str, Mapping)) and content) and (content or uuid is None):
        raise InvalidRequest(
            f"{field}.{EMBEDDINGS_PART}",
            f"got {content!r:.80}; expected a safetensors file in base64, or an object with data, "
            "dtype and shape. Set it.",
        )
    if isinstance(content, str) or (content is not None and "data" in content):
        content = {EMBEDDINGS_PART: content}
    return MediaSource(IMAGE, f"{field}.{EMBEDDINGS_PART}", uuid=uuid, content=content or None)


def _checked_uuid(uuid: Any, field: str) -> str | None:
    if uuid is None or (isinstance(uuid, str) and 0 < len(uuid) <= _MAX_UUID_CHARS):
        return uuid
    raise InvalidRequest(
        f"{field}.uuid",
        f"got {uuid!r:.80}; expected a text of up to {_MAX_UUID_CHARS} characters. Remove it.",
    )


def _image_source(part: Mapping[str, Any], field: str, ignored: list[str] | None) -> MediaSource:
    field = f"{field}.image_url"
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    detail = (given if isinstance(given, Mapping) else part).get("detail")
    return image_source(url, field, detail=detail, uuid=part.get("uuid"), ignored=ignored)


def image_source(
    url: Any, field: str, *, detail: Any = None, uuid: Any = None, ignored: list[str] | None = None
) -> MediaSource:
    """Return the source of an image with a URL. Raises `InvalidRequest`.

    `ignored` gets the path of a `detail`: models have one resolution.
    """
    uuid = _checked_uuid(uuid, field.rpartition(".")[0])
    if detail is not None and detail not in _DETAILS:
        raise InvalidRequest(
            f"{field}.detail",
            f"got {detail!r:.80}; expected one of {', '.join(_DETAILS)}. Remove it.",
        )
    if detail in _DETAILS[1:] and ignored is not None:
        ignored.append(f"{field}.detail".replace("[", ".").replace("]", ""))
    if not (isinstance(url, str) and url) and not (url is None and uuid is not None):
        raise InvalidRequest(
            field,
            f"got {url!r:.80}; expected a URL of the image, such as data:image/png;base64,. "
            "Set it.",
        )
    return MediaSource(IMAGE, field, url=url, uuid=uuid)
