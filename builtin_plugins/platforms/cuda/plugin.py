"""GPUs: CUDA's; ROCm's and Intel's by the same code, never run."""

from builtin_plugins.platforms import recording
from core.api import Entry, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Return which steps are recorded, on any platform that records some."""
    return recording.options()


@hookimpl
def engine_platforms() -> list[Entry]:
    """Return a platform for each kind of GPU; one that was never run is taken only when it is asked
    for.
    """
    place = "builtin_plugins.platforms.cuda.platform"
    return [
        Entry("cuda", f"{place}:CudaPlatform", "GPUs of NVIDIA; not yet run on one", priority=-10),
        Entry(
            "rocm",
            f"{place}:RocmPlatform",
            "GPUs of AMD, by a torch built for ROCm; untested",
            priority=-10,
        ),
        Entry("xpu", f"{place}:XpuPlatform", "GPUs of Intel; untested", priority=-10),
    ]
