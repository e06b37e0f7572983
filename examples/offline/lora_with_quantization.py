"""An adapter on a model with weights that are quantized while they are loaded."""

from core import LLM, LoRARequest, SamplingParams

chat = [{"role": "user", "content": "Say hello hello hello."}]
pirate = LoRARequest("pirate", 1, "demo:pirate")
with LLM(
    "demo:", quantization="int8", enable_lora=True, max_model_len=512, log_level="error"
) as llm:
    greedy = SamplingParams(temperature=0, max_tokens=12)
    for adapter in (None, pirate):
        (output,) = llm.chat(chat, greedy, use_tqdm=False, lora_request=adapter)
        print("pirate" if adapter else "no adapter", "->", output.outputs[0].text)
