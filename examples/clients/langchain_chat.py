"""LangChain: a prompt, the model and a parser in a chain, streamed."""

import os

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from openai import OpenAI

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
key = os.environ.get("ENGINE_API_KEY", "none")
model = (
    os.environ.get("ENGINE_MODEL")
    or OpenAI(base_url=f"{url}/v1", api_key=key).models.list().data[0].id
)

prompt = ChatPromptTemplate.from_messages([("user", "What is {thing}?")])
chain = (
    prompt
    | ChatOpenAI(base_url=f"{url}/v1", api_key=key, model=model, temperature=0)
    | StrOutputParser()
)
for text in chain.stream({"thing": "prefix caching"}):
    print(text, end="", flush=True)
print()
