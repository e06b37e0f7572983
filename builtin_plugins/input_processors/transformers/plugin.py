"""The input processors of architectures that transformers has one for."""

from core.api import Entry, hookimpl

HERE = "builtin_plugins.input_processors.transformers"


@hookimpl
def engine_input_processors() -> list[Entry]:
    """Return the one of all architectures, and those with prompts of their own."""
    return [
        *(
            Entry(name, f"{HERE}.whole_images:WholeImageProcessor", "an image as a whole prompt")
            for name in ("CLIPModel", "Siglip2Model", "SiglipModel")
        ),
        Entry(
            "Blip2ForConditionalGeneration",
            f"{HERE}.blip2:Blip2Processor",
            "BLIP-2's prompts",
        ),
        Entry(
            "ChameleonForConditionalGeneration",
            f"{HERE}.chameleon:ChameleonProcessor",
            "Chameleon's prompts",
        ),
        Entry(
            "Florence2ForConditionalGeneration",
            f"{HERE}.florence2:Florence2Processor",
            "Florence-2's tasks",
        ),
        Entry("FuyuForCausalLM", f"{HERE}.fuyu:FuyuProcessor", "Fuyu's prompts"),
        Entry(
            "Idefics2ForConditionalGeneration",
            f"{HERE}.idefics2:Idefics2Processor",
            "Idefics2's prompts",
        ),
        Entry(
            "PaliGemmaForConditionalGeneration",
            f"{HERE}.paligemma:PaliGemmaProcessor",
            "PaliGemma's prompts",
        ),
        Entry(
            "transformers",
            f"{HERE}.processor:TransformersProcessor",
            "the processors of transformers, with Pillow",
        ),
    ]
