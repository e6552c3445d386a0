"""crewAI: three turns of an agent with a tool and a complaint, streamed; then a crew of two agents, planned."""

import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

url, key = sys.argv[1:3]


@tool
def weather(city: str) -> str:
    """Return the weather."""
    return f"5 degrees in {city}"


llm = LLM(model="openai/tiny", base_url=f"{url}/v1", api_key=key, stream=True)
helper = Agent(role="Helper", goal="Help people", backstory="You are kind.", llm=llm, tools=[weather])
history: list = []
for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
    result = helper.kickoff([*history, {"role": "user", "content": text}])
    history = [message for message in result.messages if message["role"] != "system"]
    print(result.raw)
writer = Agent(role="Writer", goal="Write", backstory="You write.", llm=llm)
critic = Agent(role="Critic", goal="Criticise", backstory="You read.", llm=llm)
tasks = [
    Task(description="Write a line about snow.", expected_output="A line", agent=writer),
    Task(description="Criticise the line.", expected_output="A sentence", agent=critic),
]
print(Crew(agents=[writer, critic], tasks=tasks, planning=True, planning_llm=llm).kickoff())
