"""Media in requests: the options, and the loader that routes use."""

from __future__ import annotations

from typing import Annotated, Any, Final

from builtin_plugins.features.multimodal.media.limits import DEFAULT_MAX_BYTES, DEFAULT_MAX_PIXELS
from core.api import EngineConfig, Option, Range, Registry, hookimpl

Json = dict[str, Any]
_HOUR_S: Final = 3600.0


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "allowed_media_domains",
            list[str] | None,
            None,
            "Hosts that images of requests are fetched from: names such as example.com or "
            "*.example.com, * for all public hosts, and networks that are not public, such as "
            "10.0.0.0/8; default: none, only data: URLs are read.",
        ),
        Option(
            "allowed_local_media_path",
            str,
            "",
            "Folder of images that requests may name with file: URLs; default: none.",
        ),
        Option(
            "media_fetch_timeout",
            Annotated[float, Range(0.1, _HOUR_S)],
            5.0,
            "Time limit of one fetch, with name resolution and redirects, in seconds.",
        ),
        Option(
            "max_media_bytes",
            Annotated[int, Range(1, 1 << 32)],
            DEFAULT_MAX_BYTES,
            "Largest size of an image file in a request, in bytes; --max-request-bytes bounds "
            "those inside of it.",
        ),
        Option(
            "max_media_pixels",
            Annotated[int, Range(1, 1 << 32)],
            DEFAULT_MAX_PIXELS,
            "Largest width times height of an image in a request.",
        ),
        Option(
            "media_io_kwargs",
            Json,
            {},
            'How images are read: {"image": {"rgba_background_color": [255, 255, 255]}}, the '
            "colour under transparent pixels.",
        ),
        Option(
            "language_model_only",
            bool,
            False,
            "Text only; refused for a model with images: --limit-mm-per-prompt '{\"image\": 0}' "
            "refuses them, and its vision tower is loaded.",
        ),
        Option(
            "limit_mm_per_prompt",
            Json,
            {},
            'Largest number of images in a request, such as {"image": 4}; default: 100.',
        ),
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    # Imported lazily for a fast start.
    from builtin_plugins.features.multimodal.media.settings import MediaSettings

    MediaSettings.from_options(config.options)


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.features.multimodal.media.admission import MediaAdmission
    from builtin_plugins.features.multimodal.media.loader import ImageLoader
    from builtin_plugins.features.multimodal.media.settings import MediaSettings
    from builtin_plugins.routes.api import media_loaders

    loader = ImageLoader(MediaSettings.from_options(config.options))
    media_loaders(registry).append(loader)
    text_only = bool(config.options.get("language_model_only"))
    return [MediaAdmission(loader, text_only=text_only)]
