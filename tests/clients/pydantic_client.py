"""pydantic-ai: three turns with a tool and a complaint, by its `openai:` (Responses), `openai-chat:` and `anthropic:` models. Run with its own Python."""

import sys

from pydantic_ai import Agent


def weather(city: str) -> str:
    """Return the weather."""
    return f"5 degrees in {city}"


agent = Agent(f"{sys.argv[1]}:tiny", instructions="Help.", tools=[weather])
history = None
for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
    result = agent.run_sync(text, message_history=history)
    history = result.all_messages()
    print(result.output)
