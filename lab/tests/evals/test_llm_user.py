"""A model that plays the user, through the real litellm and a scripted endpoint."""

from __future__ import annotations

import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lab.evals.llm_user import LlmUser
from lab.evals.simulated_user import SimulatedUser, scenario
from lab.tests.evals.scripted import serving
from scorers.provider import Provider


async def test_a_model_behind_an_endpoint_words_the_users_reaction() -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: Request) -> JSONResponse:
        asked.append(json.loads(await request.body()))
        decision = json.dumps({"content": False, "words": "Kürzer, bitte."}, ensure_ascii=False)
        message = {"role": "assistant", "content": f"Here it is:\n{decision}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {"id": "c", "object": "chat.completion", "created": 1, "model": "actor", "choices": [choice]}
        )

    with serving(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])) as url:
        provider = Provider("openai/actor", api_base=url, api_key="none", flag="--user-model")
        await provider.start()
        try:
            person = SimulatedUser(scenario("steady", ["concise"]), 0, planned=2)
            reaction = await LlmUser(provider).react(person.wants, person.request(), "It is Paris.")
            reading = person.read("It is Paris.", reaction)
        finally:
            await provider.close()
    assert reading is not None
    assert reading.words == "Kürzer, bitte."
    assert reading.violated == ()
    assert "Very short answers" in asked[0]["messages"][0]["content"]
    assert provider.answers == 1
