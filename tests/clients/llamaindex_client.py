"""LlamaIndex: three turns of an agent with a tool and a complaint, streamed; then a chat over a document, which condenses its second question."""

import asyncio
import sys

from llama_index.core import Document, SummaryIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.chat_engine import CondensePlusContextChatEngine
from llama_index.core.memory import Memory
from llama_index.llms.openai_like import OpenAILike


def weather(city: str) -> str:
    """Return the weather."""
    return f"5 degrees in {city}"


async def main(url: str, key: str) -> None:
    llm = OpenAILike(
        model="tiny", api_base=f"{url}/v1", api_key=key, is_chat_model=True, is_function_calling_model=True,
        context_window=200_000, max_retries=0,
    )  # fmt: skip
    agent = FunctionAgent(tools=[weather], llm=llm, system_prompt="Help.")
    memory = Memory.from_defaults(session_id="one", token_limit=100_000)
    for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
        handler = agent.run(text, memory=memory)
        async for _ in handler.stream_events():
            pass
        print(await handler)
    index = SummaryIndex.from_documents([Document(text="Oslo is the capital of Norway. It is cold there.")])
    engine = CondensePlusContextChatEngine.from_defaults(retriever=index.as_retriever(), llm=llm)
    for text in ("What is the capital?", "And how warm is it?"):
        print("".join(engine.stream_chat(text).response_gen))


asyncio.run(main(*sys.argv[1:3]))
