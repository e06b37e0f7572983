"""Vision-language models by architecture."""

from core.api import Entry, hookimpl

SPEC = "builtin_plugins.models.vision.spec:spec"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures; `families` has what their configs do not say."""
    return [
        Entry("Gemma3ForConditionalGeneration", SPEC, "Gemma 3, text and images"),
        Entry("LlavaForConditionalGeneration", SPEC, "LLaVA 1.5"),
        Entry("Qwen2_5_VLForConditionalGeneration", SPEC, "Qwen2.5-VL"),
        Entry("Qwen2VLForConditionalGeneration", SPEC, "Qwen2-VL"),
        Entry("Qwen3VLForConditionalGeneration", SPEC, "Qwen3-VL"),
    ]
