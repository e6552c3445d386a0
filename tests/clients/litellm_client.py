"""litellm: three turns with a tool and a complaint, streamed; then a prompt beyond the context. litellm_client.py URL KEY"""

import json
import sys

import litellm

url, key = sys.argv[1:3]
TEXTS = ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect.")
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [
    {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": schema}}
]
how = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": key, "num_retries": 0}


def ask(messages: list) -> dict:
    chunks = list(litellm.completion(messages=messages, tools=tools, stream=True, **how))
    return (
        litellm.stream_chunk_builder(chunks, messages=messages)
        .choices[0]
        .message.model_dump(exclude_none=True)
    )


history: list = []
for text in TEXTS:
    history.append({"role": "user", "content": text})
    reply = ask(history)
    while reply.get("tool_calls"):
        history.append(reply)
        for call in reply["tool_calls"]:
            city = json.loads(call["function"]["arguments"])["city"]
            history.append({"role": "tool", "tool_call_id": call["id"], "content": f"5 degrees in {city}"})
        reply = ask(history)
    history.append(reply)
    print(reply["content"])
try:
    litellm.completion(messages=[{"role": "user", "content": "This is too long: a"}], **how)
except litellm.ContextWindowExceededError:
    print("beyond the context")
try:
    litellm.completion(messages=history[:1], **{**how, "api_key": "wrong"})
except litellm.AuthenticationError:
    print("a wrong key is recognised")
