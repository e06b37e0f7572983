from core import LLM

with LLM("scripted:", plugins=["+./greeting.py"], log_level="error") as llm:
    for output in llm.generate(["there", "you"], greeting="hello ", use_tqdm=False):
        print(output.outputs[0].text)
    try:
        llm.generate("there", greting="hello ", use_tqdm=False)
    except ValueError as error:
        print(error)
