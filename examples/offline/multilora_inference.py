"""Requests with different adapters in one batch."""

from core import LLM, LoRARequest, SamplingParams

chat = [{"role": "user", "content": "Say hello hello hello."}]
adapters = [
    None,
    LoRARequest("capitals", 1, "demo:capitals"),
    LoRARequest("pirate", 2, "demo:pirate"),
]
with LLM("demo:", enable_lora=True, max_loras=2, max_model_len=512, log_level="error") as llm:
    greedy = SamplingParams(temperature=0, max_tokens=12)
    outputs = llm.chat([chat] * 3, greedy, use_tqdm=False, lora_request=adapters)
for adapter, output in zip(adapters, outputs, strict=True):
    print(adapter.lora_name if adapter else "no adapter", "->", output.outputs[0].text)
