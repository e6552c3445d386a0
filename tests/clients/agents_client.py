"""The OpenAI Agents SDK: three turns with a tool and a complaint, by Responses (its default) or chat. Run with its own Python.

The history is kept here or, in the modes "session" and "conversation", by the gateway.
"""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


@function_tool
def weather(city: str) -> str:
    """Return the weather."""
    return f"5 degrees in {city}"


async def main(url: str, key: str, mode: str) -> None:
    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0))
    if mode == "chat":
        set_default_openai_api("chat_completions")
    agent = Agent(
        name="Helper",
        instructions="Help.",
        model="tiny",
        tools=[weather],
        model_settings=ModelSettings(temperature=0.5),
    )
    if mode == "previous":
        previous = None
        for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
            result = await Runner.run(agent, text, previous_response_id=previous)
            previous = result.last_response_id
            print(result.final_output)
        return
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    stored = OpenAIConversationsSession(openai_client=client)
    session = stored if mode == "session" else SQLiteSession("one")
    conversation = (await client.conversations.create()).id
    where = {"conversation_id": conversation} if mode == "conversation" else {"session": session}
    for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
        result = Runner.run_streamed(agent, text, **where)
        async for _ in result.stream_events():
            pass
        print(result.final_output)
    if mode == "session":
        items = await session.get_items()
        assert [item["type"] for item in items].count("function_call") == 1, items
        assert await session.pop_item() == items[-1]
        assert await session.get_items(limit=2) == items[-3:-1]
        await session.add_items(items[-1:] * 21)
        assert len(await session.get_items()) == len(items) + 20
        await session.clear_session()
        assert await session.get_items() == []


asyncio.run(main(*sys.argv[1:4]))
