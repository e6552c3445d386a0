"""Completion requests (`/v1/completions`) and their replies, read as chat: the prompt is one user message. Sans-IO.

The record keeps the exact token ids of prompt and completion, so the turn is trained on as it was sampled, without a chat template.
"""

from __future__ import annotations

from typing import Any

from store.errors import WireError
from store.values import Json
from wire.chat_request import MAX_DEPTH, ChatRequest, exceeds_depth, load_object, read_temperature
from wire.redaction import redact_body
from wire.reply_assembly import Assembler

#: What `CapturedExchange.api` calls these requests.
API_NAME = "completions"
#: Fields that make a reply's tokens differ from what was sampled for the prompt.
_ALTERING = ("echo", "suffix", "best_of", "use_beam_search", "truncate_prompt_tokens")


def parse_completion(raw: bytes) -> ChatRequest:
    """Parse a completion request.

    Raises:
        WireError: it is not a JSON object, or is nested too deeply; the backend reports what is wrong.
    """
    body = load_object(raw)
    if exceeds_depth(raw, body, MAX_DEPTH):
        raise WireError("the request is nested too deeply to be recorded")
    redacted = redact_body(body)
    prompt = redacted.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    n, model = body.get("n"), body.get("model")
    others = {name: value for name, value in redacted.items() if name != "prompt"}
    messages = ({"role": "user", "content": prompt if isinstance(prompt, str) else ""},)
    return ChatRequest(
        body={**others, "messages": list(messages)},
        messages=messages,
        model=model if isinstance(model, str) else None,
        stream=body.get("stream") is True,
        n=n if isinstance(n, int) and n > 0 else 1,
        temperature=read_temperature(body),
        is_redacted=redacted != body,
        is_completion=True,
        unreadable=_unreadable(prompt, others),
    )


def _unreadable(prompt: Any, others: Json) -> str:
    """Return why a completion cannot be recorded as a turn, or ""."""
    if not isinstance(prompt, str):
        return "the completion's prompt is not one text"
    altering = [name for name in _ALTERING if others.get(name) not in (None, False, 1)]
    return f"the completion has {altering[0]}" if altering else ""


def write_completion(chat: ChatRequest) -> Json:
    """Return a completion's body, secrets redacted, in the form that `parse_completion` reads."""
    others = {name: value for name, value in chat.body.items() if name != "messages"}
    return {"prompt": chat.messages[0]["content"], **others}


class CompletionAssembler(Assembler):
    """Assembles the reply to a completion request."""

    def consume(self, payload: Any, *, part: str) -> None:
        super().consume(_as_chat(payload, part) if isinstance(payload, dict) else payload, part=part)


def _as_chat(payload: Json, part: str) -> Json:
    choices = payload.get("choices")
    if not isinstance(choices, list):
        return payload
    given = [choice for choice in choices if isinstance(choice, dict)]
    prompts = [choice["prompt_token_ids"] for choice in given if choice.get("prompt_token_ids") is not None]
    read = {**payload, "choices": [_choice_as_chat(choice, part) for choice in given]}
    return {**read, "prompt_token_ids": prompts[0]} if prompts else read


def _choice_as_chat(choice: Json, part: str) -> Json:
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    return {
        "index": choice.get("index", 0),
        part: {"content": choice.get("text")},
        "token_ids": choice.get("token_ids"),
        "logprobs": {"content": [{"logprob": value} for value in values]}
        if isinstance(values, list)
        else None,
        "finish_reason": choice.get("finish_reason"),
    }
