"""smolagents: three tasks of an agent with a tool and a complaint, streamed; the last one after a plan."""

import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool

url, key = sys.argv[1:3]


@tool
def weather(city: str) -> str:
    """Return the weather.

    Args:
        city: a city
    """
    return f"5 degrees in {city}"


model = OpenAIModel(model_id="tiny", api_base=f"{url}/v1", api_key=key, client_kwargs={"max_retries": 0})
agent = ToolCallingAgent(tools=[weather], model=model, stream_outputs=True)
texts = ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect.")
for number, text in enumerate(texts):
    if number == 2:
        agent.planning_interval = 3
    print(agent.run(text, reset=number == 0))
