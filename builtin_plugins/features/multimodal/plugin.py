"""Images in prompts: options, and the admission, scheduling and worker halves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from builtin_plugins.launchers.api import is_on_this_host
from core.api import ConfigError, EngineConfig, Option, Range, Registry, hookimpl

if TYPE_CHECKING:
    from builtin_plugins.input_processors.api import ProcessedItem

Json = dict[str, Any]


@hookimpl
def engine_options() -> list[Option]:
    count = Annotated[int, Range(1, 1 << 30)] | None
    return [
        Option(
            "mm_processor_kwargs",
            Json | None,
            None,
            'Keywords of the input processor for every request, such as {"max_pixels": 500000}.',
        ),
        Option(
            "enable_mm_embeds",
            bool,
            False,
            "Take embeddings of images in place of images: tensors offline, parts of type "
            "image_embeds over HTTP.",
        ),
        Option(
            "trust_request_mm_kwargs",
            bool,
            False,
            "Read mm_processor_kwargs of HTTP requests: they may enlarge images without bound.",
        ),
        Option(
            "disable_chunked_mm_input",
            bool,
            False,
            "Compute the tokens of an image in one step, as for models in which they see each "
            "other.",
        ),
        Option(
            "mm_processor_cache_gb",
            Annotated[float, Range(0, 1 << 20)],
            4.0,
            "Size up to which processed items stay in shared memory for later requests, in GiB.",
        ),
        Option(
            "mm_encoder_cache_tokens",
            count,
            None,
            "Size of the encoder cache of each rank in embeddings; default: four steps' budget.",
        ),
        Option(
            "mm_encoder_step_tokens",
            count,
            None,
            "Embeddings that one step encodes, unless a single item is larger; default: "
            "--max-num-batched-tokens.",
        ),
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.features.multimodal.admission import MultimodalAdmission

    return [MultimodalAdmission(config, registry)]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    has_tower = _has_tower(config, registry)
    if not has_tower:
        if has_tower is False:
            _refuse_options(config)
        return []
    # Imported lazily for a fast start.
    from builtin_plugins.features.multimodal.scheduling import EncoderScheduler
    from builtin_plugins.features.multimodal.settings import Settings
    from builtin_plugins.metric_sinks.api import gauge_providers

    settings = Settings.from_config(config)
    if settings.max_images:
        _refuse_other_hosts(config, registry)
    scheduler = EncoderScheduler(settings)
    gauge_providers(registry)["multimodal"] = scheduler.gauges
    return [scheduler]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if not _has_tower(config, registry):
        return []  # each step of a text model would call it in vain
    # Imported lazily: only workers need torch.
    from builtin_plugins.features.multimodal.settings import Settings
    from builtin_plugins.features.multimodal.worker import MultimodalWorker
    from builtin_plugins.metric_sinks.api import memory_owners

    largest_item = partial(_largest_item, registry)
    return [MultimodalWorker(Settings.from_config(config), memory_owners(registry), largest_item)]


def _largest_item(registry: Registry, config: EngineConfig) -> ProcessedItem:
    """Return the largest item, in tokens, of an allowed image. Raises `ModelError`."""
    # Imported lazily: text models need no Pillow.
    from builtin_plugins.features.multimodal.largest_item import largest_item
    from builtin_plugins.features.multimodal.media.settings import MediaSettings
    from builtin_plugins.features.multimodal.processor_process import load_processor
    from builtin_plugins.features.multimodal.settings import Settings

    max_pixels = MediaSettings.from_options(config.options).limits.max_pixels
    kwargs = Settings.from_config(config).processor_kwargs
    return largest_item(load_processor(config, registry), max_pixels, kwargs)


def _has_tower(config: EngineConfig, registry: Registry) -> bool | None:
    """Return whether the model's spec has a tower; None without a model."""
    found: bool | None = registry.shared(
        "multimodal.has_tower", partial(_read_tower, config, registry)
    )
    return found


def _read_tower(config: EngineConfig, registry: Registry) -> bool | None:
    from core.models.layers.loading import read_model  # lazy: torch is slow to import

    source = registry.find_model(config.model.model, config)
    if source is None:
        return None
    spec, _ = read_model(config, source, registry)
    return getattr(spec, "tower", None) is not None


def _refuse_other_hosts(config: EngineConfig, registry: Registry) -> None:
    """Raise `ConfigError` if the engine or its ranks may be on other hosts.

    They read tensors of images in this host's shared memory.
    """
    if is_on_this_host(config, registry):
        return
    raise ConfigError(
        f"MODEL: got {config.model.model}, which reads images, with --nnodes or a launcher for "
        "other hosts; expected all processes on this one, since they share the images' memory. "
        "Serve text only with --limit-mm-per-prompt '{\"image\": 0}', or run it on one host."
    )


def _refuse_options(config: EngineConfig) -> None:
    """Raise `ConfigError` for options that a text model has no use for."""
    for option in engine_options():
        value = config.options.get(option.name, option.default)
        if value != option.default:
            flag = f"--{option.name.replace('_', '-')}"
            raise ConfigError(
                f"{flag}: got {value!r:.80}; expected a model that reads images, and "
                f"{config.model.model} reads text only. Remove the flag."
            )
