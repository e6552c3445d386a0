"""A backend's errors with OpenAI's codes: those that clients act on, and no others."""

from __future__ import annotations

import orjson
import pytest

from wire.error_codes import openai_code, rewrite_error

VLLM = "This model's maximum context length is 2048 tokens. However, you requested 50 output tokens and your prompt contains 3000 input tokens."


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (400, VLLM, "context_length_exceeded"),
        (400, "this model's maximum context length is 2048 tokens, but the prompt has 3000 tokens", "context_length_exceeded"),
        (400, "the request exceeds the available context size", "context_length_exceeded"),
        (404, "The model `x` does not exist.", "model_not_found"),
        (404, "the model x does not exist", "model_not_found"),
        (500, VLLM, None),
        (400, "temperature must be at least 0", None),
        (404, "no such file", None),
        (429, "too many requests", None),
    ],
)  # fmt: skip
def test_an_error_has_openais_type_and_code(status: int, message: str, code: str | None) -> None:
    """Engines write the status as the code; SDKs declare a string or null."""
    assert openai_code(status, message) == code
    body = orjson.dumps(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
    )
    error = orjson.loads(rewrite_error(status, body, "/v1/chat/completions"))["error"]
    kind = {500: "server_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")
    assert (error["code"], error["message"], error["type"]) == (code, message, kind)
    assert (error["param"] in ("messages", "model")) == (code is not None)


@pytest.mark.parametrize(
    "body", [b'{"detail":"Not Found"}', b'{"error":{"message":"POST /v1/embeddings: Not Found","code":404}}']
)
def test_a_missing_route_says_what_is_recorded_and_what_to_do(body: bytes) -> None:
    error = orjson.loads(rewrite_error(404, body, "/v1/embeddings"))["error"]
    assert error["message"].startswith("This backend has no /v1/embeddings. Patina records chat")
    assert error["message"].endswith("set another base URL for the client's embeddings.")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v1/v1/messages", "did you mean /v1/messages? This client adds /v1 to its base URL."),
        ("/v1/openai/deployments/tiny/embeddings", "Azure's paths are not served"),
    ],
)
def test_a_wrong_base_url_is_named(path: str, sentence: str) -> None:
    error = orjson.loads(rewrite_error(404, b'{"detail":"Not Found"}', path))["error"]
    assert sentence in error["message"]
    assert error["code"] == "not_found"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"busy",
        b"[]",
        b'{"error": "x"}',
        b'{"error": {"message": 5}}',
        b'{"error":{"message":"the model x does not exist","code":"own"}}',
        b'{"error":{"message":"no","type":"invalid_request_error","code":null}}',
    ],
)
def test_what_is_not_understood_stays_as_it_is(body: bytes) -> None:
    assert rewrite_error(404, body, "/v1/x") == body
