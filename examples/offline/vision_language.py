"""A question about an image."""

from PIL import Image

from core import LLM, SamplingParams

image = Image.new("RGB", (64, 64), "red")
content = [
    {"type": "image_pil", "image_pil": image},
    {"type": "text", "text": "What colour is it?"},
]
with LLM("demo:vision", max_model_len=1024, log_level="error") as llm:
    params = SamplingParams(temperature=0, max_tokens=24)
    (output,) = llm.chat([{"role": "user", "content": content}], params, use_tqdm=False)
print(output.outputs[0].text)
