"""AutoGen: three tasks of an agent with a tool and a complaint, streamed; then a team whose speaker the model selects."""

import asyncio
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import SelectorGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def weather(city: str) -> str:
    """Return the weather."""
    return f"5 degrees in {city}"


async def main(url: str, key: str) -> None:
    info = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "family": "unknown",
        "structured_output": True,
    }
    model = OpenAIChatCompletionClient(
        model="tiny", base_url=f"{url}/v1", api_key=key, model_info=info, max_retries=0
    )
    agent = AssistantAgent(
        "helper", model_client=model, tools=[weather], model_client_stream=True, reflect_on_tool_use=True
    )
    for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
        *_, result = [event async for event in agent.run_stream(task=text)]
        print(result.messages[-1].content)
    members = [
        AssistantAgent(name, model_client=model, description=f"A {name}") for name in ("writer", "critic")
    ]
    team = SelectorGroupChat(members, model_client=model, termination_condition=MaxMessageTermination(3))
    result = await team.run(task="Write a line about snow.")
    print([message.source for message in result.messages])


asyncio.run(main(*sys.argv[1:3]))
