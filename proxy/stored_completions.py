"""OpenAI's stored completions, over the record: list, retrieve, annotate, delete, and list the messages of a key's completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from proxy.answers import answering_errors
from proxy.asgi import read_json, send_json
from proxy.feedback import THUMBS, FeedbackBody, parse_feedback
from proxy.item_pages import is_oldest_first, list_of, page, read_limit, read_metadata, read_query
from store.catch_up import wait_recorded
from store.errors import RecordError, WireError
from store.journal import JournalWriter
from store.record import Record
from store.record_handle import RecordHandle
from store.values import Json, RecordedTurn, StoredCompletion, StoredQuery
from wire.api_translation import Untranslatable, read_object
from wire.chat_reply import assistant_message

PREFIX = "/v1/chat/completions"
_RECORD_WAIT_S = 20.0
#: Request fields that OpenAI shows with a stored completion.
_REQUEST_FIELDS = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "tools", "tool_choice", "response_format", "user",
)  # fmt: skip
#: Metadata that a person's opinion is read from.
_OPINIONS = ("feedback", "rating", "thumbs", "score")

GiveFeedback = Callable[[str, str, FeedbackBody], Awaitable[str]]


class StoredCompletions:
    """Serves ``GET /v1/chat/completions`` and everything under it.

    Args:
        give_feedback: appends explicit feedback (key name, turn, feedback) to the journal.
    """

    def __init__(self, record: RecordHandle, journal: JournalWriter, give_feedback: GiveFeedback) -> None:
        self._record = record
        self._journal = journal
        self._give_feedback = give_feedback

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, key_name: str, path: str) -> None:
        completion_id, _, action = path.removeprefix(PREFIX).removeprefix("/").partition("/")
        method: str = scope["method"]
        options = read_query(scope.get("query_string") or b"")
        async with answering_errors(
            send, "a stored completion could not be read or changed", (RecordError, OSError)
        ):
            record = await self._record.get()
            # A completion may have been returned a moment ago.
            await wait_recorded(record, self._journal.folder, _RECORD_WAIT_S)
            if not completion_id:
                await send_json(send, 200, await self._list(record, key_name, options))
                return
            found = await record.stored_completion(key_name, completion_id)
            if found is None or action not in ("", "messages") or (action and method != "GET"):
                raise Untranslatable(
                    f"Chat completion with id '{completion_id}' not found.", status=404, code="not_found"
                )
            if action:
                await send_json(send, 200, _message_list(found, options))
            elif method == "DELETE":
                await record.delete_completion(found.turn.turn_id)
                answer = {"object": "chat.completion.deleted", "id": found.completion_id, "deleted": True}
                await send_json(send, 200, answer)
            elif method == "POST":
                raw = await read_json(receive, scope["headers"])
                metadata = read_metadata(read_object(raw))
                await self._read_opinion(key_name, found.turn, metadata)
                await record.set_completion_metadata(found.turn.turn_id, metadata)
                await send_json(send, 200, {**_shown(found), "metadata": metadata})
            else:
                await send_json(send, 200, _shown(found))

    async def _list(self, record: Record, key_name: str, options: Json) -> Json:
        metadata = {
            name.removeprefix("metadata[").removesuffix("]"): value
            for name, value in options.items()
            if name.startswith("metadata[")
        }
        wanted = StoredQuery(
            model=options.get("model"),
            metadata=metadata,
            after=options.get("after"),
            limit=read_limit(options),
            is_oldest_first=is_oldest_first(options, default="asc"),  # OpenAI's default
            with_unstored=options.get("stored") == "all",
        )
        listed = await record.list_completions(key_name, wanted)
        if listed is None:
            raise Untranslatable(f"There is no completion '{wanted.after}'.", status=404, param="after")
        found, has_more = listed
        return list_of([_shown(one) for one in found], has_more=has_more)

    async def _read_opinion(self, key_name: str, turn: RecordedTurn, metadata: Json) -> None:
        """Give what a person thinks of the completion, where the metadata says it, as explicit feedback."""
        given = {name: _opinion(metadata[name]) for name in _OPINIONS if name in metadata}
        if str(given.get("feedback", "")).lower() in THUMBS:
            given.setdefault("thumbs", given.pop("feedback"))
        if not given:
            return
        try:
            body = parse_feedback({"turn_id": turn.turn_id, **given})
        except WireError as exc:
            raise Untranslatable(f"metadata is read as feedback, and {exc}.", param="metadata") from exc
        await self._give_feedback(key_name, turn.turn_id, body)


def _opinion(value: str) -> str | float:
    """Return a number where the text is one."""
    try:
        return float(value)
    except ValueError:
        return value


def _shown(found: StoredCompletion) -> Json:
    """Return a completion as OpenAI shows a stored one."""
    request = found.turn.request
    return {
        "id": found.completion_id,
        "object": "chat.completion",
        "created": int(found.turn.created_at),
        "model": request.get("model") or found.policy,
        "request_id": found.turn.turn_id,
        "choices": [_choice(index, turn) for index, turn in enumerate(found.choices)],
        "usage": found.turn.usage,
        "metadata": found.metadata,
        **{name: request[name] for name in _REQUEST_FIELDS if name in request},
    }


def _choice(index: int, turn: RecordedTurn) -> Json:
    message = {**assistant_message(turn.text, turn.reasoning, turn.tool_calls), "refusal": None}
    return {"index": index, "message": message, "finish_reason": turn.finish_reason, "logprobs": None}


def _message_list(found: StoredCompletion, options: Json) -> Json:
    messages = []
    for i, message in enumerate(found.turn.messages):
        shown = {**message, "id": f"{found.completion_id}-{i}"}
        if isinstance(message.get("content"), list):
            parts = message["content"]
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            shown["content"] = "\n".join(text for text in texts if isinstance(text, str))
            shown["content_parts"] = parts
        messages.append(shown)
    return page(messages[::-1], {"order": "asc", **options})
