"""Fields of requests to models that are pooled.

Types and limits are here; what a field means is in its endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from builtin_plugins.routes.conversation.fields import Priority, Small
from core.api import InvalidRequest, PoolingParams, Unserved

MAX_INPUTS: Final = 1024
"""Texts, or pairs of texts, in one request."""

ByteOrder = Literal["native", "little", "big"]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
SIDES: Final = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)
"""Pairs of names for the two sides of scores: vLLM's of today and of earlier."""
Texts = str | dict[str, Any] | list[Any]
"""A text, an object with one, or a list of these."""


class PoolingFields(msgspec.Struct, kw_only=True):
    """What all of these requests share."""

    model: str | None = None
    priority: Priority = 0
    cache_salt: Small = ""
    request_id: Small | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    softmax: bool | None = None
    activation: bool | None = None

    @property
    def typed(self) -> Mapping[str, str]:
        """Names of fields as the client wrote them, by the engine's."""
        return {}

    def params(self, **more: Any) -> PoolingParams:
        """Return what is to be made of each prompt."""
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
    """Default: true for inputs, false for messages, whose template writes them."""
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}

    @property
    def typed(self) -> Mapping[str, str]:
        """Names of fields as the client wrote them, by the engine's."""
        return {"prompt": "input" if self.messages is None else "messages"}


class ClassifyFields(InputFields, kw_only=True):
    """Body of `/classify`."""


class EmbeddingFields(InputFields, kw_only=True):
    """Body of `/v1/embeddings`."""

    dimensions: Count | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of numbers in base64 or bytes."""
    endianness: ByteOrder = "native"


class PoolFields(EmbeddingFields, kw_only=True):
    """Body of `/pooling`."""

    task: Small | None = None
    """Default: what the model was made for."""


class ScoreFields(PoolingFields, kw_only=True):
    """Body of `/score`: two sides under one of their pairs of names."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    @property
    def sides(self) -> tuple[str, str]:
        """Names of the two sides. Raises `InvalidRequest` where not one pair of names is given."""
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
        """Names of fields as the client wrote them, by the engine's."""
        second = next((name for _, name in SIDES if getattr(self, name) is not None), "text_2")
        return {"prompt": second, "data": second}


class RerankFields(PoolingFields, kw_only=True):
    """Body of `/rerank`, as Jina's and Cohere's clients send it; with `texts` as those of
    text-embeddings-inference.
    """

    query: str | dict[str, Any]
    documents: list[str | dict[str, Any]] | None = None
    top_n: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    """0: all."""
    return_documents: bool = True
    texts: list[str] | None = None
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool = False

    @property
    def typed(self) -> Mapping[str, str]:
        """Names of fields as the client wrote them, by the engine's."""
        name = "documents" if self.texts is None else "texts"
        return {"prompt": name, "data": name}


class EmbedFields(PoolingFields, kw_only=True):
    """Body of `/v2/embed`, as Cohere's clients send it."""

    texts: list[str] | None = None
    inputs: list[dict[str, Any]] | None = None
    input_type: Small | None = None
    embedding_types: list[Literal["float", "base64", "binary", "ubinary"]] | None = None
    output_dimension: Count | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: Count | None = None

    @property
    def typed(self) -> Mapping[str, str]:
        """Names of fields as the client wrote them, by the engine's."""
        return {
            "prompt": "texts" if self.inputs is None else "inputs",
            "prompt_name": "input_type",
            "dimensions": "output_dimension",
            "truncate_prompt_tokens": "max_tokens",
        }


WITHOUT_EFFECT: Final = ("user", "metadata", "safety_identifier", "max_chunks_per_doc")
"""Fields of these APIs that ask nothing of an engine that serves one model."""
_ENDS: Final = "is not served for the left: what is cut off are ends of texts"
_TEXT_ONLY: Final = "is not served: this engine reads text"
UNSERVED: Final[Mapping[str, Unserved]] = {
    "truncation_side": Unserved(_ENDS, ("right",)),
    "truncation_direction": Unserved(_ENDS, ("right", "Right")),
    "padding": Unserved("is not served: no prompt is filled up", ("do_not_pad",)),
    "mm_processor_kwargs": Unserved(_TEXT_ONLY),
    "media_io_kwargs": Unserved(_TEXT_ONLY),
    "images": Unserved(_TEXT_ONLY),
    "data": Unserved("is for IO processors, and no plugin brings one"),
    "rank_fields": Unserved("is not served; give each document's text as `text`", (["text"],)),
    "max_tokens_per_doc": Unserved(
        "is not served; truncate_prompt_tokens cuts query and document together"
    ),
}
"""Known fields that cannot be served yet: what is missing, and values besides empty ones that ask
for nothing.
"""
