"""Vision-language models by architecture."""

from core.api import Entry, hookimpl

SPEC = "builtin_plugins.models.vision.spec:spec"
DUAL = "builtin_plugins.models.vision.dual_encoders:spec"
RETRIEVAL = "builtin_plugins.models.vision.retrieval"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures; `families` has what their configs do not say."""
    return [
        Entry("AriaForConditionalGeneration", SPEC, "Aria"),
        Entry("AyaVisionForConditionalGeneration", SPEC, "Aya Vision"),
        Entry("Blip2ForConditionalGeneration", SPEC, "BLIP-2 with OPT"),
        Entry("CLIPModel", DUAL, "CLIP, texts and images"),
        Entry("ChameleonForConditionalGeneration", SPEC, "Chameleon, images to text"),
        Entry("ColQwen2ForRetrieval", f"{RETRIEVAL}:colqwen2", "ColQwen2, a vector for each token"),
        Entry("Cohere2VisionForConditionalGeneration", SPEC, "Command A Vision"),
        Entry("DeepseekOcr2ForConditionalGeneration", SPEC, "DeepSeek-OCR 2"),
        Entry("DeepseekVLForConditionalGeneration", SPEC, "DeepSeek-VL"),
        Entry("DeepseekVLHybridForConditionalGeneration", SPEC, "DeepSeek-VL, two towers"),
        Entry("Ernie4_5_VLMoeForConditionalGeneration", SPEC, "ERNIE 4.5 VL, images"),
        Entry("Exaone4_5_ForConditionalGeneration", SPEC, "EXAONE 4.5, images"),
        Entry("Florence2ForConditionalGeneration", SPEC, "Florence-2"),
        Entry("FuyuForCausalLM", SPEC, "Fuyu, one image before the text"),
        Entry("Gemma3ForConditionalGeneration", SPEC, "Gemma 3, text and images"),
        Entry("Gemma3nForConditionalGeneration", SPEC, "Gemma 3n, text and images"),
        Entry("Gemma4ForConditionalGeneration", SPEC, "Gemma 4, text and images"),
        Entry("Glm46VForConditionalGeneration", SPEC, "GLM-4.6V, images"),
        Entry("Glm4vForConditionalGeneration", SPEC, "GLM-4.1V, images"),
        Entry("Glm4vMoeForConditionalGeneration", SPEC, "GLM-4.5V, images"),
        Entry("GlmOcrForConditionalGeneration", SPEC, "GLM-OCR"),
        Entry("GotOcr2ForConditionalGeneration", SPEC, "GOT-OCR 2"),
        Entry("HunYuanVLForConditionalGeneration", SPEC, "HunYuan-VL, HunyuanOCR"),
        Entry("HyperCLOVAXVisionV2ForConditionalGeneration", SPEC, "HyperCLOVA X Vision 2, images"),
        Entry("Idefics2ForConditionalGeneration", SPEC, "Idefics2"),
        Entry("Idefics3ForConditionalGeneration", SPEC, "Idefics3"),
        Entry("InternVLForConditionalGeneration", SPEC, "InternVL 3"),
        Entry("JanusForConditionalGeneration", SPEC, "Janus, understanding"),
        Entry("JinaVLForRanking", f"{RETRIEVAL}:jina_reranker", "Jina Reranker m0, a score"),
        Entry("Kimi_K25ForConditionalGeneration", SPEC, "Kimi K2.5, images"),
        Entry("Lfm2VlForConditionalGeneration", SPEC, "LFM2-VL"),
        Entry("LightOnOcrForConditionalGeneration", SPEC, "LightOnOCR"),
        Entry("Llama4ForConditionalGeneration", SPEC, "Llama 4, text and images"),
        Entry("LlavaForConditionalGeneration", SPEC, "LLaVA 1.5, Pixtral"),
        Entry("LlavaNextForConditionalGeneration", SPEC, "LLaVA-NeXT, Granite Vision"),
        Entry("LlavaNextVideoForConditionalGeneration", SPEC, "LLaVA-NeXT-Video, images"),
        Entry("LlavaOnevisionForConditionalGeneration", SPEC, "LLaVA-OneVision, images"),
        Entry("MiniCPMV4_6ForConditionalGeneration", SPEC, "MiniCPM-V 4.6, images"),
        Entry("MiniCPMV4_7ForConditionalGeneration", SPEC, "MiniCPM-V 4.7, images"),
        Entry("MiniMaxM3SparseForConditionalGeneration", SPEC, "MiniMax M3, images"),
        Entry("Mistral3ForConditionalGeneration", SPEC, "Mistral 3"),
        Entry("MistralLarge4ForConditionalGeneration", SPEC, "Mistral Large 4, text and images"),
        Entry("MllamaForConditionalGeneration", SPEC, "Llama 3.2 Vision"),
        Entry("Molmo2ForConditionalGeneration", SPEC, "Molmo 2, images"),
        Entry("Ovis2ForConditionalGeneration", SPEC, "Ovis2"),
        Entry("PaddleOCRVLForConditionalGeneration", SPEC, "PaddleOCR-VL"),
        Entry("PaliGemmaForConditionalGeneration", SPEC, "PaliGemma and PaliGemma 2"),
        Entry("Phi4MultimodalForCausalLM", SPEC, "Phi-4-multimodal, text and images"),
        Entry("QianfanOCRForConditionalGeneration", SPEC, "Qianfan-OCR"),
        Entry("Qwen2_5_VLForConditionalGeneration", SPEC, "Qwen2.5-VL"),
        Entry("Qwen2VLForConditionalGeneration", SPEC, "Qwen2-VL"),
        Entry("Qwen3VLForConditionalGeneration", SPEC, "Qwen3-VL"),
        Entry(
            "Qwen3VLForSequenceClassification", f"{RETRIEVAL}:qwen3_vl_reranker", "Qwen3-VL, scores"
        ),
        Entry("Qwen3VLMoeForConditionalGeneration", SPEC, "Qwen3-VL with experts"),
        Entry("Qwen3_5ForConditionalGeneration", SPEC, "Qwen 3.5, text and images"),
        Entry("Qwen3_5MoeForConditionalGeneration", SPEC, "Qwen 3.5 with experts, text and images"),
        Entry("Siglip2Model", DUAL, "SigLIP 2 of any shape, texts and images"),
        Entry("SiglipModel", DUAL, "SigLIP and SigLIP 2, texts and images"),
        Entry("SmolVLMForConditionalGeneration", SPEC, "SmolVLM"),
        Entry("Step3p7ForConditionalGeneration", SPEC, "Step 3.7, images"),
        Entry("VideoLlama3ForConditionalGeneration", SPEC, "VideoLLaMA 3, images"),
        Entry("VideoLlavaForConditionalGeneration", SPEC, "Video-LLaVA, images"),
        Entry("VipLlavaForConditionalGeneration", SPEC, "VIP-LLaVA"),
    ]
