"""GPU platforms: CUDA; ROCm and Intel share the code and were never run."""

from builtin_plugins.platforms import recording
from core.api import EngineConfig, Entry, Option, hookimpl


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    recording.RecordingOptions.from_config(config)


@hookimpl
def engine_options() -> list[Option]:
    """Return the options of recorded steps, for all platforms, and of ranks."""
    sums = "Sum over tensor-parallel GPUs by NCCL only, not through each other's memory."
    cache = (
        "Folder of compiled GPU kernels and their tuned launches, which later starts and other "
        "machines with equal GPUs read; default: Triton's, ~/.triton/cache."
    )
    return [
        *recording.options(),
        Option("disable_custom_all_reduce", bool, False, sums),
        Option("kernel_cache_dir", str | None, None, cache),
    ]


@hookimpl
def engine_platforms() -> list[Entry]:
    """Return a platform per kind of GPU; untested ones are used only if selected."""
    module = "builtin_plugins.platforms.cuda.platform"
    return [
        Entry("cuda", f"{module}:CudaPlatform", "NVIDIA GPUs", priority=-10),
        Entry(
            "rocm",
            f"{module}:RocmPlatform",
            "AMD GPUs, with a torch built for ROCm; untested",
            priority=-10,
        ),
        Entry("xpu", f"{module}:XpuPlatform", "Intel GPUs; untested", priority=-10),
    ]
