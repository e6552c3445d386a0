"""The prompts of a recorded turn with the wishes and without them. Sans-IO; the template is a callable.

The student learns to answer the prompt without the wishes as the teacher answers it with them, so both have to be rendered. They must
differ **by the wishes and nothing else**. The proof is that the same rendering with what the gateway added gives the recorded ids,
token for token. Clients and engines write the same message in several ways (text as parts, tool arguments as a string, content null);
the few known ways are tried. Where none gives the recorded ids the turn is dropped: a teacher with another context would teach the
difference between contexts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from serving.openai_server.chat_template import named_tools
from store.errors import AlignmentError
from store.values import ScoredTurn
from wire.wish_text import add_wishes

#: messages, tools, further template arguments -> prompt ids, generation header included; raises AlignmentError.
Render = Callable[..., list[int]]
Messages = list[dict[str, Any]]


class PromptPair(NamedTuple):
    """Prompt ids without the wishes, [P], and with them, [P']."""

    plain: tuple[int, ...]
    wished: tuple[int, ...]


def prompt_pair(render: Render, turn: ScoredTurn, *, text: str, place: str) -> PromptPair:
    """Return the prompts of a turn with and without wishes.

    Args:
        render: `LocalPolicy.render`.
        text: the wishes, as `wire.wish_text.join_wishes` gives them; "": both prompts are the same.
        place: see `wire.wish_text.add_wishes`.

    Raises:
        AlignmentError: no known way of writing the messages gives the recorded ids, or there is no place for the wishes.
    """
    if not turn.prompt_token_ids:
        raise AlignmentError("the engine did not say what prompt it was given")
    recorded = list(turn.prompt_token_ids)
    template = template_options(turn.request)
    refusal = ""
    try:
        sent = add_wishes(turn.messages, turn.wish_text, turn.wish_place) if turn.wish_text else turn.messages
    except ValueError as error:
        raise AlignmentError(str(error)) from error
    for write, tools in _ways(sent, turn.request):
        try:
            if render(write(sent), tools, **template) != recorded:
                continue
            plain = tuple(render(write(turn.messages), tools, **template))
            wished = (
                tuple(render(write(add_wishes(turn.messages, text, place)), tools, **template))
                if text
                else plain
            )
        except (AlignmentError, ValueError) as error:
            refusal = f": {error}"
            continue
        return PromptPair(plain, wished)
    raise AlignmentError(
        f"template mismatch: no rendering of the messages gives the recorded prompt{refusal}"
    )


def template_options(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a request's prompt was rendered: the template's arguments, and whether its last message is continued.

    Raises:
        AlignmentError: the arguments are no object.
    """
    template = request.get("chat_template_kwargs") or {}
    if not isinstance(template, Mapping):
        raise AlignmentError("chat_template_kwargs is not an object")
    options = dict(template)
    if request.get("continue_final_message"):
        options |= {"add_generation_prompt": False, "continue_final_message": True}
    elif request.get("add_generation_prompt") is False:
        options["add_generation_prompt"] = False
    return options


def _ways(
    messages: Sequence[Mapping[str, Any]], request: Mapping[str, Any]
) -> Iterator[tuple[Callable[[Sequence[Mapping[str, Any]]], Messages], list[Any] | None]]:
    """Each way to hand these messages and tools to a template that differs from those before, the commonest first."""
    tools = request.get("tools") or None
    tool_sets: list[list[Any] | None] = [tools]
    if tools:
        # Some engines hide tools that may not be called, and ours those that a model does not call of itself or that are not the named one.
        tool_sets += [named_tools(tools, request.get("tool_choice")), None]
    seen: list[tuple[Messages, list[Any] | None]] = []
    for some_tools, parts, arguments, null, developer in product(
        tool_sets,
        ("lines", "parts", "glued"),
        ("object", "string"),
        ("empty", "null", "absent"),
        ("system", "kept"),
    ):
        write = partial(_rewritten, parts, arguments, null, developer)
        written = (write(messages), some_tools)
        if written not in seen:
            seen.append(written)
            yield write, some_tools


def _rewritten(
    parts: str, arguments: str, null: str, developer: str, messages: Sequence[Mapping[str, Any]]
) -> Messages:
    return [_written(message, parts, arguments, null, developer) for message in messages]


def _written(
    message: Mapping[str, Any], parts: str, arguments: str, null: str, developer: str
) -> dict[str, Any]:
    # An empty system message states nothing: engines and templates differ only about `content`.
    result = {key: value for key, value in message.items() if value is not None}
    content = result.get("content")
    if isinstance(content, list) and parts != "parts":
        texts = [part.get("text", part.get("refusal")) for part in content if isinstance(part, Mapping)]
        if all(isinstance(text, str) for text in texts):  # an image has no text: its message stays as it is
            result["content"] = ("\n" if parts == "lines" else "").join(str(text) for text in texts)
    elif content is None and null != "absent":
        result["content"] = "" if null == "empty" else None
    calls = result.get("tool_calls")
    if calls == []:
        del result["tool_calls"]
    elif isinstance(calls, list) and arguments == "object":
        result["tool_calls"] = [_parsed(call) for call in calls]
    if developer == "system" and result.get("role") == "developer":
        result["role"] = "system"
    return result


def _parsed(call: Any) -> Any:
    """A tool call with its arguments as an object; as it is when they are not JSON."""
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    text = function.get("arguments")
    if text is not None and not isinstance(text, str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads((text or "").strip() or "{}")}}
    except ValueError:
        return call
