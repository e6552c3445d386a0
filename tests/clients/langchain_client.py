"""LangChain: three turns of an agent with a tool and a complaint, streamed; a structured one-off; a prompt beyond the context."""

import sys

from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

url, key = sys.argv[1:3]


class Title(BaseModel):
    """A title."""

    title: str


def weather(city: str) -> str:
    """Return the weather."""
    return f"5 degrees in {city}"


model = ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key=key, max_retries=0)
agent = create_agent(model, tools=[weather], system_prompt="Help.", checkpointer=InMemorySaver())
config = {"configurable": {"thread_id": "one"}}
for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
    pieces = list(agent.stream({"messages": [("user", text)]}, config, stream_mode="messages"))
    print("".join(piece.text for piece, _ in pieces if piece.type == "AIMessageChunk"))
titled = model.with_structured_output(Title).invoke(
    "Write a title for this conversation: the weather in Oslo."
)
print(titled)
try:
    model.invoke("This is too long: a")
except ContextOverflowError:
    print("beyond the context")
