"""Answers of a given form: one of several texts, a regex, a grammar, a JSON schema."""

from core import LLM, SamplingParams, StructuredOutputsParams

person = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
constraints = [
    StructuredOutputsParams(choice=["sunny", "cloudy"]),
    StructuredOutputsParams(regex=r"[0-9]{2} degrees"),
    StructuredOutputsParams(grammar='root ::= "rain" (" and rain")?'),
    StructuredOutputsParams(json=person),
]
with LLM("demo:", max_model_len=256, log_level="error") as llm:
    params = [
        SamplingParams(temperature=0, max_tokens=40, structured_outputs=each)
        for each in constraints
    ]
    for output in llm.generate(["The weather: "] * 4, params, use_tqdm=False):
        print(output.outputs[0].text)
