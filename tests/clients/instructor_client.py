"""instructor: a conversation in objects, streamed, with a complaint; then an extraction that its validator refuses once."""

import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel, field_validator

url, key = sys.argv[1:3]
refused = []


class Reply(BaseModel):
    """What is replied."""

    text: str


class City(BaseModel):
    """A city."""

    name: str

    @field_validator("name")
    @classmethod
    def refuse_once(cls, name: str) -> str:
        if not refused:
            refused.append(name)
            raise ValueError("the name must be in capitals")
        return name


client = instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0))
history = []
for text in ("Where is Oslo?", "No, that is wrong. Answer shorter.", "Thanks, perfect."):
    history.append({"role": "user", "content": text})
    [*_, reply] = client.chat.completions.create_partial(model="tiny", messages=history, response_model=Reply)
    history.append({"role": "assistant", "content": reply.text})
    print(reply.text)
asked = [{"role": "user", "content": "Extract the city: Oslo is cold in winter."}]
print(client.chat.completions.create(model="tiny", messages=asked, response_model=City, max_retries=2))
