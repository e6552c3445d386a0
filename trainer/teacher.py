"""The teacher's prompt: the student's, with the person's reaction to it. Sans-IO; the template is a callable.

The student's prompt is never rendered: it is what the engine says it was given. So the teacher's, which has to be rendered, must
be known to differ from it **by the hint and nothing else**. The proof is that the same rendering without the hint gives the
recorded ids, token for token. Clients and engines write the same message in several ways (text as parts, tool arguments as
a string, content null); the few known ways are tried. Where none gives the recorded ids the turn is dropped: a teacher with
another context would teach the difference between contexts.

A prompt that no longer fits loses the other hints first, the oldest before the newer, then whole old messages, never its end:
the generation header is what makes the next token the first of an answer. Where the engine cut the prompt and the reply is long,
the prompt is cut once more in the engine's way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from serving.openai_server.chat_template import named_tools
from serving.prompt_window import PromptWindow, cutting, fit_prompt
from store.errors import AlignmentError
from trainer.hindsight import after_hints, with_hint

#: messages, tools, further template arguments -> prompt ids, generation header included; raises AlignmentError.
Render = Callable[..., list[int]]
Messages = list[dict[str, Any]]


def teacher_prompt(
    render: Render,
    *,
    messages: Sequence[Mapping[str, Any]],
    request: Mapping[str, Any],
    hint: str,
    is_reaction: bool,
    recorded_prompt_ids: Sequence[int],
    max_tokens: int,
    others: Sequence[str] = (),
    window: PromptWindow | None = None,
) -> tuple[int, ...]:
    """Ids [P'] of the prompt with the hint in context.

    Args:
        render: `LocalPolicy.render`.
        messages, request: as recorded; of the request, ``tools``, ``tool_choice`` and ``chat_template_kwargs`` count.
        hint: what would have helped.
        is_reaction: it is the person's own words.
        recorded_prompt_ids: [P] what the engine says the policy was given.
        max_tokens: room for the prompt: the context less the completion.
        others: hints about other answers, oldest first; with any, this one comes after them in the same form.
        window: how much of a long prompt the model reads; None: all.

    Raises:
        AlignmentError: "template mismatch" (no known way of writing the messages gives the recorded ids), no user
            message, or no room for the hint.
    """
    if not recorded_prompt_ids:
        raise AlignmentError("the engine did not say what prompt it was given")
    recorded = list(recorded_prompt_ids)
    template = request.get("chat_template_kwargs") or {}
    if not isinstance(template, Mapping):
        raise AlignmentError("chat_template_kwargs is not an object")
    refusal = ""
    for write, tools in _ways(messages, request):
        try:
            written = write(messages)
            ids = render(written, tools, **template)
            if ids != recorded:
                read = _read(partial(render, **template), written, tools, ids, recorded, window)
                if read is None:
                    continue
                messages, tools = read
        except AlignmentError as error:
            refusal = f": {error}"
            continue
        rendered = partial(_rendered, render, write, tools, template)
        together = _add_hints(rendered, messages, [*others, hint], max_tokens) if others else None
        if together is not None:
            return together
        add_hint = partial(with_hint, hint=hint, is_reaction=is_reaction)
        try:
            hinted = add_hint(messages)
        except ValueError as error:
            raise AlignmentError(str(error)) from error
        try:
            return _fit(rendered, hinted, max_tokens)
        except AlignmentError:
            shorter = window and _cut_further(
                partial(render, **template), write(messages), tools, add_hint, max_tokens
            )
            if not shorter:
                raise
            return shorter
    raise AlignmentError(
        f"template mismatch: no rendering of the messages gives the recorded prompt{refusal}"
    )


def _read(
    render: Render,
    messages: Messages,
    tools: list[Any] | None,
    ids: list[int],
    recorded: list[int],
    window: PromptWindow | None,
) -> tuple[Messages, list[Any] | None] | None:
    """The messages and tools that the engine chose of a prompt that was too long; None where that is not what was recorded."""
    window = cutting(window, ids)
    if window is None:
        return None
    if not all(isinstance(one.get("content"), str) for one in messages):
        return None
    fitted = fit_prompt(render, messages, tools, ids=ids, room=window.room)
    if fitted.ids != recorded or fitted.messages is None:
        return None
    return fitted.messages, fitted.tools


def _add_hints(
    render: Callable[[Messages], list[int]],
    messages: Sequence[Mapping[str, Any]],
    hints: Sequence[str],
    room: int,
) -> tuple[int, ...] | None:
    """The prompt after as many of the newest hints as there is room for; None: there is none for two, or the template has no such
    conversation."""
    for start in range(len(hints) - 1):
        try:
            ids = render(after_hints(messages, hints[start:]))
        except (AlignmentError, ValueError):
            return None
        if len(ids) <= room:
            return tuple(ids)
    return None


def _rendered(
    render: Render,
    write: Callable[[Sequence[Mapping[str, Any]]], Messages],
    tools: list[Any] | None,
    template: Mapping[str, Any],
    messages: Messages,
) -> list[int]:
    return render(write(messages), tools, **template)


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


def _fit(render: Callable[[Messages], list[int]], messages: Messages, room: int) -> tuple[int, ...]:
    """Render; while it is too long, leave out the oldest exchange that is neither a system message nor the hinted message.

    An exchange goes as a whole: a tool's answer without the call it answers breaks templates and teaches nonsense.
    """
    while True:
        ids = render(messages)
        if len(ids) <= room:
            return tuple(ids)
        shorter = _without_oldest(messages)
        if shorter is None:
            raise AlignmentError(
                f"no room for the hint: the teacher's prompt has {len(ids)} tokens and may have {room}"
            )
        messages = shorter


def _cut_further(
    render: Render,
    messages: Messages,
    tools: list[Any] | None,
    add_hint: Callable[[Messages], Messages],
    room: int,
) -> tuple[int, ...] | None:
    """The prompt with the whole hint and less of the rest: a long reply to a prompt that the engine cut leaves no room for both."""
    whole = render(messages, tools)
    for_rest = room - (len(render(add_hint(messages), tools)) - len(whole))
    if for_rest <= 0 or not all(isinstance(one.get("content"), str) for one in messages):
        return None
    fitted = fit_prompt(render, messages, tools, ids=whole, room=for_rest)
    if fitted.messages is None:
        return None
    ids = render(add_hint(fitted.messages), fitted.tools)
    return tuple(ids) if len(ids) <= room else None


def _without_oldest(messages: Messages) -> Messages | None:
    last_user = max(i for i, message in enumerate(messages) if message.get("role") == "user")
    start = next(
        (i for i, message in enumerate(messages) if message.get("role") not in ("system", "developer")), None
    )
    if start is None:
        return None
    if start == last_user:  # the last question of a long run of tool calls: its oldest call goes
        start += 1
        stop = _end_of_exchange(messages, start, ("assistant",))
        # What the answer follows directly stays: the newest message, and the call it answers.
        if stop >= len(messages):
            return None
    else:
        stop = min(_end_of_exchange(messages, start, ("user",)), last_user)
    return messages[:start] + messages[stop:]


def _end_of_exchange(messages: Messages, start: int, begins: tuple[str, ...]) -> int:
    return next(
        (i for i in range(start + 1, len(messages)) if messages[i].get("role") in begins), len(messages)
    )
