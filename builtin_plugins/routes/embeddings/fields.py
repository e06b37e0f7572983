"""Bodies of the requests to pooling models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from builtin_plugins.routes.common.fields import Priority, ShortString
from core.api import InvalidRequest, PoolingParams
from core.api.features import Unsupported

MAX_INPUTS: Final = 1024
"""Largest number of texts, or pairs of texts, in one request."""

ByteOrder = Literal["native", "little", "big"]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
SIDES: Final = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)
"""Names of the two sides of a score: vLLM's current and earlier ones."""
Texts = str | dict[str, Any] | list[Any]
"""A text, an object with one, or a list of these."""


class PoolingFields(msgspec.Struct, kw_only=True):
    """Fields of all pooling requests."""

    model: str | None = None
    priority: Priority = 0
    cache_salt: ShortString = ""
    request_id: ShortString | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    softmax: bool | None = None
    activation: bool | None = None

    @property
    def typed(self) -> Mapping[str, str]:
        """The client's field names, by the engine's."""
        return {}

    def params(self, **more: Any) -> PoolingParams:
        """Return the pooling parameters."""
        return PoolingParams(
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            use_activation=self.use_activation,
            normalize=self.normalize,
            softmax=self.softmax,
            activation=self.activation,
            **more,
        )


class InputFields(PoolingFields, kw_only=True):
    """Texts, token ids, or a conversation."""

    input: str | list[Any] | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    """Default: true for inputs, false for messages: chat templates write them."""
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}

    @property
    def typed(self) -> Mapping[str, str]:
        """The client's field names, by the engine's."""
        return {"prompt": "input" if self.messages is None else "messages"}


class ClassifyFields(InputFields, kw_only=True):
    """Body of `/classify`."""


class EmbeddingFields(InputFields, kw_only=True):
    """Body of `/v1/embeddings`."""

    dimensions: Count | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Dtype of numbers in base64 or bytes."""
    endianness: ByteOrder = "native"


class PoolFields(EmbeddingFields, kw_only=True):
    """Body of `/pooling`."""

    task: ShortString | None = None
    """Default: the model's own task."""


class ScoreFields(PoolingFields, kw_only=True):
    """Body of `/score`: two sides, under one of the pairs of names in `SIDES`."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    @property
    def sides(self) -> tuple[str, str]:
        """Names of the two sides. Raises `InvalidRequest` unless exactly one pair is set."""
        given = {name for names in SIDES for name in names if getattr(self, name) is not None}
        for names in SIDES:
            if given == set(names):
                return names
        raise InvalidRequest(
            "text_1",
            "give the two sides as "
            f"{', or '.join(f'{first} and {second}' for first, second in SIDES)}.",
        )

    @property
    def typed(self) -> Mapping[str, str]:
        """The client's field names, by the engine's."""
        second = next((name for _, name in SIDES if getattr(self, name) is not None), "text_2")
        return {"prompt": second, "data": second}


class RerankFields(PoolingFields, kw_only=True):
    """Body of `/rerank`: Jina's and Cohere's, or with `texts` text-embeddings-inference's."""

    query: str | dict[str, Any]
    documents: list[str | dict[str, Any]] | None = None
    top_n: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    """Number of documents in the answer; 0: all."""
    return_documents: bool = True
    texts: list[str] | None = None
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool = False

    @property
    def typed(self) -> Mapping[str, str]:
        """The client's field names, by the engine's."""
        name = "documents" if self.texts is None else "texts"
        return {"prompt": name, "data": name}


class EmbedFields(PoolingFields, kw_only=True):
    """Body of `/v2/embed` in Cohere's API."""

    texts: list[str] | None = None
    inputs: list[dict[str, Any]] | None = None
    input_type: ShortString | None = None
    embedding_types: list[Literal["float", "base64", "binary", "ubinary"]] | None = None
    output_dimension: Count | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: Count | None = None

    @property
    def typed(self) -> Mapping[str, str]:
        """The client's field names, by the engine's."""
        return {
            "prompt": "texts" if self.inputs is None else "inputs",
            "prompt_name": "input_type",
            "dimensions": "output_dimension",
            "truncate_prompt_tokens": "max_tokens",
        }


WITHOUT_EFFECT: Final = ("user", "metadata", "safety_identifier", "max_chunks_per_doc")
"""Fields of these APIs that are accepted and ignored."""
_ENDS: Final = "is not served for the left: what is cut off are ends of texts"
_BY_SERVER: Final = "is set by the server, by the flag of its name"
UNSERVED: Final[Mapping[str, Unsupported]] = {
    "truncation_side": Unsupported(_ENDS, ("right",)),
    "truncation_direction": Unsupported(_ENDS, ("right", "Right")),
    "padding": Unsupported("is not served: no prompt is filled up", ("do_not_pad",)),
    "mm_processor_kwargs": Unsupported(_BY_SERVER),
    "media_io_kwargs": Unsupported(_BY_SERVER),
    "images": Unsupported("is not served; send images as parts of `messages`"),
    "data": Unsupported("is for IO processors, and no plugin brings one"),
    "rank_fields": Unsupported("is not served; give each document's text as `text`", (["text"],)),
    "max_tokens_per_doc": Unsupported(
        "is not served; truncate_prompt_tokens cuts query and document together"
    ),
}
"""Known fields that are not served: the error, and further values without effect."""
