from core import LLM, SamplingParams, StructuredOutputsParams

constraints = [
    StructuredOutputsParams(choice=["sunny", "cloudy"]),
    StructuredOutputsParams(regex=r"[0-9]{2} degrees"),
    StructuredOutputsParams(grammar='root ::= "rain" (" and rain")*'),
    StructuredOutputsParams(
        json={"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}
    ),
]
prompts = ["cloudy", "21 degrees", "rain and rain", '{"wet": true}']
with LLM("scripted:", max_model_len=256, log_level="error") as llm:
    params = [
        SamplingParams(temperature=0, max_tokens=40, structured_outputs=constraint)
        for constraint in constraints
    ]
    for output in llm.generate(prompts, params, use_tqdm=False):
        print(output.outputs[0].text)
