from core import LLM, LoRARequest, SamplingParams

chat = [{"role": "user", "content": "Say hello hello hello."}]
adapters = [
    None,
    LoRARequest("capitals", 1, "demo:capitals"),
    LoRARequest("pirate", 2, "demo:pirate"),
]
with LLM("demo:", enable_lora=True, max_loras=2, dtype="float32", log_level="error") as llm:
    greedy = SamplingParams(temperature=0, max_tokens=12)
    for output in llm.chat([chat] * 3, greedy, use_tqdm=False, lora_request=adapters):
        print(output.outputs[0].text[:5])
    print(llm.add_lora(LoRARequest("spare", 3, "demo:pirate")), llm.list_loras())
