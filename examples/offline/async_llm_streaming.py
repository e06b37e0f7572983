"""`AsyncLLM`: two streams at once, printed as they grow."""

import asyncio

from core import AsyncLLM, RequestOutputKind, SamplingParams

params = SamplingParams(
    temperature=0, max_tokens=12, ignore_eos=True, output_kind=RequestOutputKind.DELTA
)


async def stream(engine: AsyncLLM, name: str, prompt: str) -> None:
    async for output in engine.generate(prompt, params, request_id=name):
        print(name, repr(output.outputs[0].text))


async def main() -> None:
    engine = AsyncLLM("demo:", max_model_len=256, log_level="error")
    try:
        await asyncio.gather(
            stream(engine, "first", "One, two, three"), stream(engine, "second", "A, B, C")
        )
    finally:
        engine.shutdown()


asyncio.run(main())
