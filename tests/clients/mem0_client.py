"""mem0: three turns of its chat client with a tool and a complaint; it searches its memories first, and extracts new ones in a thread."""

import json
import sys
import threading

import litellm
from mem0.proxy.main import Mem0

url, key = sys.argv[1:3]
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [
    {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": schema}}
]
backend = {"openai_base_url": f"{url}/v1", "api_key": key}
client = Mem0(
    config={
        "llm": {"provider": "openai", "config": {"model": "tiny", **backend}},
        "embedder": {
            "provider": "openai",
            "config": {"model": "tiny-embeddings", "embedding_dims": 4, **backend},
        },
        "vector_store": {
            "provider": "qdrant",
            "config": {"path": "memories", "on_disk": True, "embedding_model_dims": 4},
        },
        "history_db_path": "history.db",
    }
)
litellm.register_model({"openai/tiny": {"litellm_provider": "openai", "supports_function_calling": True}})


def ask(messages: list) -> dict:
    reply = client.chat.completions.create(
        "openai/tiny", messages, user_id="ann", tools=tools, base_url=f"{url}/v1", api_key=key, stream=True
    )
    message = litellm.stream_chunk_builder(list(reply), messages=messages).choices[0].message
    for thread in threading.enumerate():
        if thread.name.endswith("(add_task)"):
            thread.join()
    return message.model_dump(exclude_none=True)


history: list = []
for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
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
print([each["memory"] for each in client.mem0_client.get_all(filters={"user_id": "ann"})["results"]])
