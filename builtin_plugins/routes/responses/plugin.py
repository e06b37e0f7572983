"""`/v1/responses`, as OpenAI's clients and Codex call it."""

from __future__ import annotations

from typing import Annotated, Any

from core.api import Entry, Option, Range, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.responses.routes:ResponsesRoutes"
    return [Entry("responses", target, "responses", requires=("fastapi",))]


@hookimpl
def engine_add_hooks() -> list[Any]:
    from builtin_plugins.routes.responses import hookspecs  # lazy: called once

    return [hookspecs]


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "responses_store",
            str,
            "",
            "SQLite file that stores responses, or the URL of a database for several servers, "
            "such as `postgresql://engine@host/responses` (plugin engine-postgres); default: "
            "memory.",
        ),
        Option(
            "responses_store_bytes",
            Annotated[int, Range(0, 1 << 44)],
            64 * 1024 * 1024,
            "Largest total size of stored responses. 0 stores none.",
        ),
        Option(
            "responses_store_owner_bytes",
            Annotated[int, Range(0, 1 << 44)] | None,
            None,
            "Largest size of the stored responses of one owner; the oldest are evicted first; "
            "default: an equal share for each API key, without keys a quarter of the store.",
        ),
        Option(
            "responses_image_placeholder",
            str | None,
            None,
            "Text that a prompt of `/v1/responses` has in place of an image, such as `[an image "
            "that you cannot see]`; default: the model gets images, or refuses them.",
        ),
    ]
