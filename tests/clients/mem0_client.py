"""mem0: three turns with a tool and a complaint, as its readme shows: memories are searched before a turn, and extracted behind it."""

import json
import sys

from mem0 import Memory
from openai import OpenAI

url, key = sys.argv[1:3]
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [
    {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": schema}}
]
backend = {"openai_base_url": f"{url}/v1", "api_key": key}
embedder = {"model": "tiny-embeddings", "embedding_dims": 4, **backend}
store = {"path": "memories", "on_disk": True, "embedding_model_dims": 4}
memory = Memory.from_config(
    {
        "llm": {"provider": "openai", "config": {"model": "tiny", **backend}},
        "embedder": {"provider": "openai", "config": embedder},
        "vector_store": {"provider": "qdrant", "config": store},
        "history_db_path": "history.db",
    }
)
client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
history: list = []
for text in ("Please use the tool.", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
    found = memory.search(query=text, filters={"user_id": "ann"}, top_k=3)["results"]
    lines = "\n".join(f"- {each['memory']}" for each in found)
    system = {"role": "system", "content": f"You are a helpful AI.\nUser Memories:\n{lines}"}
    history.append({"role": "user", "content": text})
    while True:
        with client.chat.completions.stream(model="tiny", messages=[system, *history], tools=tools) as stream:
            reply = stream.get_final_completion().choices[0].message
        history.append(reply.to_dict())
        for call in reply.tool_calls or ():
            city = json.loads(call.function.arguments)["city"]
            history.append({"role": "tool", "tool_call_id": call.id, "content": f"5 degrees in {city}"})
        if not reply.tool_calls:
            break
    print(reply.content)
    memory.add(
        [{"role": "user", "content": text}, {"role": "assistant", "content": reply.content}], user_id="ann"
    )
print([each["memory"] for each in memory.get_all(filters={"user_id": "ann"})["results"]])
memory.vector_store.client.close()
