"""The Responses and Messages APIs: each request becomes one chat request of `proxy.relay`, and its reply the API's own.

So the record holds the chat request with the sampler's tokens, whatever API the client speaks. What a client names by id (a previous response,
an item, a conversation) is answered from the newest turns in memory and from the record, which gateways share.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import orjson
from starlette.types import Receive, Scope, Send

from proxy.adapters import AdapterBusy, Alias, ModelRequest, UnknownModel
from proxy.answers import answering_errors, send_busy
from proxy.api_error import build_error_body
from proxy.asgi import (
    BodyTooLarge,
    ClientDisconnected,
    read_json,
    send_body,
    send_error,
    send_head,
    send_json,
)
from proxy.auth import Principal
from proxy.conversations import Conversations
from proxy.item_pages import includes_logprobs, page, read_query
from proxy.recent_turns import RecentTurns
from proxy.relay import ChatRelay
from proxy.translated_send import TranslatedSend, send_refusal
from serving.protocol import BackendClient
from store.catch_up import wait_recorded
from store.errors import RecordError, UpstreamError
from store.journal import JournalWriter
from store.record_handle import RecordHandle
from store.values import Json, RecordedTurn
from wire.api_translation import CHAT_PATH, ApiRequest, Untranslatable, read_error, read_object
from wire.headers import Headers, forward_request_headers, get_header
from wire.messages_api.reply import MessageSynthesizer
from wire.messages_api.request import translate_request as translate_message
from wire.reply_strip import read_reply
from wire.responses_api.conversation import ConversationInput, conversation_input, own_items
from wire.responses_api.items import turn_of
from wire.responses_api.reply import ResponseSynthesizer, instructions_of
from wire.responses_api.request import NAME, conversation_of, referenced_turns, translate_request

log = logging.getLogger(__name__)

#: Another gateway may have issued a response a moment ago: longest wait until it is recorded.
_RECORD_WAIT_S = 20.0
_COUNT_WAIT_S = 60.0
#: Fields of a chat request that `/tokenize` takes.
_TOKENIZED = ("model", "messages", "tools", "add_generation_prompt", "continue_final_message")
#: Request headers that belong to the translated body or to the other API.
_NOT_FOR_CHAT = frozenset(
    {b"accept-encoding", b"anthropic-version", b"anthropic-beta", b"content-type", b"x-api-key"}
)


class ApiRelay:
    """Serves the paths of both APIs."""

    def __init__(
        self,
        chat: ChatRelay,
        backend: BackendClient,
        alias: Alias,
        record: RecordHandle,
        journal: JournalWriter,
        *,
        is_local: bool,
    ) -> None:
        self._chat = chat
        self._backend = backend
        self._alias = alias
        self._record = record
        self._journal = journal
        self._is_local = is_local
        self.conversations = Conversations(record, self.conversation_turns)

    @property
    def _recent(self) -> RecentTurns:
        return self._chat.recent

    # ---- new replies

    async def create_response(
        self, scope: Scope, receive: Receive, send: Send, *, principal: Principal, session: str | None
    ) -> None:
        """Serve ``POST /v1/responses``."""
        translated = TranslatedSend(send, lambda status, body: (status, body))

        async def translate(raw: bytes) -> ApiRequest:
            request = await self._translate_response(principal.key_name, read_object(raw))
            chat = orjson.loads(request.chat)
            instructions = instructions_of(chat["messages"], request.detail)
            synthesizer = ResponseSynthesizer(chat, request.detail, instructions=instructions)
            translated.expect(synthesizer, stream=request.stream)
            return request

        await self._relay(scope, receive, translated, translate, principal=principal, session=session)

    async def create_message(
        self, scope: Scope, receive: Receive, send: Send, *, principal: Principal, session: str | None
    ) -> None:
        """Serve ``POST /v1/messages``; ``send`` translates errors."""
        translated = TranslatedSend(send, lambda status, body: (status, body))

        async def translate(raw: bytes) -> ApiRequest:
            request = translate_message(raw, can_continue=self._is_local)
            chat = orjson.loads(request.chat)
            synthesizer = MessageSynthesizer(
                chat["model"],
                thinks=bool(request.detail.get("thinking")),
                stop_sequences=chat.get("stop") or (),
            )
            translated.expect(synthesizer, stream=request.stream)
            return request

        await self._relay(scope, receive, translated, translate, principal=principal, session=session)

    async def _relay(
        self,
        scope: Scope,
        receive: Receive,
        send: TranslatedSend,
        translate: Callable[[bytes], Awaitable[ApiRequest]],
        *,
        principal: Principal,
        session: str | None,
    ) -> None:
        chat_scope = {**scope, "headers": chat_headers(scope["headers"])}
        try:
            await self._chat(
                chat_scope,
                receive,
                send,
                principal=principal,
                path=CHAT_PATH,
                session=session,
                translate=translate,
            )
        except Untranslatable as exc:
            kind = "invalid_request_error"
            await send_refusal(
                send, exc, build_error_body(str(exc), kind=kind, code=exc.code, param=exc.param)
            )
        except RecordError as exc:
            log.warning("a turn could not be read back: %s", exc)
            error = Untranslatable("The record cannot be read now. Retry the request.", status=503)
            await send_refusal(send, error, build_error_body(str(error), kind="server_error"))

    async def _translate_response(self, key_name: str, body: Json) -> ApiRequest:
        turns = {}
        for turn_id in referenced_turns(body):
            turn = await self._find_turn(key_name, turn_id)
            if turn is not None and _is_kept(turn):
                turns[turn_id] = turn
        previous: RecordedTurn | None = None
        items: ConversationInput | None = None
        named = body.get("previous_response_id")
        conversation = conversation_of(body)
        if named is not None:
            previous = turns.get(turn_of(named) or "")
            if previous is None:
                raise Untranslatable(
                    f"Previous response with id '{named}' not found.",
                    code="previous_response_not_found",
                    param="previous_response_id",
                )
        elif conversation is not None:
            items = await self._find_conversation(key_name, conversation)
        return translate_request(body, turns, previous=previous, conversation=items)

    async def _find_turn(self, key_name: str, turn_id: str) -> RecordedTurn | None:
        """Return a turn from the record or, while it is not recorded yet, from memory. Raises: RecordError."""
        recent = self._recent.find(key_name, turn_id)
        try:
            record = await self._record.get()
            found = await record.recorded_turn(key_name, turn_id)
            if found is None:  # another gateway may have issued it a moment ago
                lag = await wait_recorded(
                    record, self._journal.folder, _RECORD_WAIT_S if recent is None else 0.0
                )
                found = await record.recorded_turn(key_name, turn_id)
                if found is None and not lag.entries:
                    self._recent.remove(turn_id)  # it was recorded and forgotten
                    return None
        except RecordError:
            if recent is None:
                raise
            return recent
        return found or recent

    async def _find_conversation(self, key_name: str, conversation: str) -> ConversationInput:
        """Return what a conversation holds. Raises: RecordError, Untranslatable."""
        known = await (await self._record.get()).conversation(key_name, conversation)
        if known is None:
            raise Untranslatable(
                f"Conversation with id '{conversation}' not found.", status=404, param="conversation"
            )
        return conversation_input(known, await self.conversation_turns(key_name, conversation))

    async def conversation_turns(self, key_name: str, conversation: str) -> list[RecordedTurn]:
        """Return the finished turns of a conversation, also those that another gateway has just issued. Raises: RecordError."""
        record = await self._record.get()
        lag = await wait_recorded(record, self._journal.folder, _RECORD_WAIT_S)
        turns = await record.conversation_turns(key_name, conversation)
        if lag.entries:
            newest = turns[-1].created_at if turns else 0.0
            recent = self._recent.of_conversation(key_name, conversation)
            turns += [turn for turn in recent if turn.created_at > newest]
        return turns

    # ---- responses that exist

    async def existing_response(self, scope: Scope, send: Send, *, principal: Principal, path: str) -> None:
        """Serve ``/v1/responses/{id}``, its input items, its deletion and its cancellation."""
        response_id, _, action = path.removeprefix("/v1/responses/").partition("/")
        method: str = scope["method"]
        query: bytes = scope.get("query_string") or b""
        with_logprobs = includes_logprobs(query)
        async with answering_errors(send, "a response could not be read back"):
            turn = await self._find_turn(principal.key_name, turn_of(response_id) or "")
            if turn is None or not _is_kept(turn) or (method, action) not in _ACTIONS:
                missing = (
                    "Patina compacts no responses: send the shortened history as input."
                    if response_id == "compact"
                    else f"Response with id '{response_id}' not found."
                )
                await send_error(send, 404, missing, code="not_found")
            elif method == "DELETE":
                await self._forget(principal.key_name, turn.turn_id)
                await send_json(send, 200, {"id": response_id, "object": "response", "deleted": True})
            elif action == "input_items":
                await send_json(send, 200, page(own_items(turn)[::-1], read_query(query)))
            elif action == "cancel":
                await send_error(
                    send, 400, "Only background responses can be cancelled, and Patina runs none."
                )
            elif (options := read_query(query)).get("stream") == "true":
                after = options.get("starting_after", "")
                events = _synthesizer_of(turn).recorded_events(
                    turn, after=int(after) if after.isdecimal() else -1, with_logprobs=with_logprobs
                )
                await send_head(send, 200, [_EVENT_STREAM, (b"content-length", str(len(events)).encode())])
                await send_body(send, events)
            else:
                response = _synthesizer_of(turn).recorded(turn, with_logprobs=with_logprobs)
                await send_json(send, 200, response)

    async def _forget(self, key_name: str, turn_id: str) -> None:
        record = await self._record.get()
        await wait_recorded(record, self._journal.folder, _RECORD_WAIT_S)
        await record.hide_turn(key_name, turn_id)
        self._recent.remove(turn_id)

    # ---- counting

    async def count_response_tokens(
        self, scope: Scope, receive: Receive, send: Send, *, principal: Principal
    ) -> None:
        """Serve ``POST /v1/responses/input_tokens``."""

        async def translate(raw: bytes) -> ApiRequest:
            return await self._translate_response(principal.key_name, read_object(raw))

        count = await self._answer_count(scope, receive, send, translate, principal)
        if count is not None:
            await send_json(send, 200, {"object": "response.input_tokens", "input_tokens": count})

    async def count_message_tokens(
        self, scope: Scope, receive: Receive, send: Send, *, principal: Principal
    ) -> None:
        """Serve ``POST /v1/messages/count_tokens``."""

        async def translate(raw: bytes) -> ApiRequest:
            return translate_message(raw, is_count=True, can_continue=self._is_local)

        count = await self._answer_count(scope, receive, send, translate, principal)
        if count is not None:
            await send_json(send, 200, {"input_tokens": count})

    async def _answer_count(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        translate: Callable[[bytes], Awaitable[ApiRequest]],
        principal: Principal,
    ) -> int | None:
        """Return the number of prompt tokens of a request; None when an error was sent."""
        try:
            raw = await read_json(receive, scope["headers"])
            request = await translate(raw)
            return await self._count(orjson.loads(request.chat), scope["headers"], principal)
        except ClientDisconnected:
            return None
        except BodyTooLarge:
            await send_error(send, 413, "The request body is larger than 64 MB.")
        except Untranslatable as exc:
            await send_error(send, exc.status, str(exc), code=exc.code, param=exc.param)
        except UnknownModel as exc:
            await send_error(send, 404, str(exc), code="model_not_found", param="model")
        except AdapterBusy as exc:
            await send_busy(send, exc)
        except UpstreamError as exc:
            await send_error(send, 502, str(exc), kind="server_error")
        except RecordError as exc:
            log.warning("a turn could not be read back: %s", exc)
            await send_error(
                send, 503, "The record cannot be read now. Retry the request.", kind="server_error"
            )
        return None

    async def _count(self, chat: Json, headers: Headers, principal: Principal) -> int:
        """Return the number of prompt tokens: the backend's tokenizer counts them, or a request for a single token. Not recorded."""
        asked = ModelRequest(model=chat.get("model"), group=principal.adapter, is_owner=principal.is_owner)
        lease = await self._alias.lease(asked, wait_s=_COUNT_WAIT_S)
        try:
            if lease.name is not None:
                chat["model"] = lease.name
            path, field = ("/tokenize", "count") if self._is_local else (CHAT_PATH, "prompt_tokens")
            names = _TOKENIZED if self._is_local else tuple(chat)
            body = {
                name: chat[name]
                for name in names
                if name in chat and name not in ("stream", "stream_options")
            }
            if not self._is_local:
                body["max_tokens"] = 1
            forwarded = forward_request_headers(
                chat_headers(headers),
                drop=frozenset({b"content-length", b"content-encoding"}),
                passes_credentials=principal.passes_credentials,
            )
            reply = await self._backend.open("POST", path, forwarded, orjson.dumps(body))
            try:
                found = await reply.read()
            finally:
                reply.close()
        finally:
            lease.release()
        if reply.status >= 400:
            message, code, _ = read_error(reply.status, found)
            raise Untranslatable(message, status=reply.status, code=code)
        counted, _ = read_reply(found)
        counted = counted if isinstance(counted, dict) else {}
        value = counted.get(field) if self._is_local else (counted.get("usage") or {}).get(field)
        if not isinstance(value, int):
            raise UpstreamError(f"the backend at {self._backend.address} did not count the tokens")
        return value


_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_ACTIONS = frozenset({("GET", ""), ("GET", "input_items"), ("DELETE", ""), ("POST", "cancel")})


def chat_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers of the chat request: a key in `x-api-key` is a Bearer token there."""
    headers = tuple(headers)
    kept = [field for field in headers if field[0].lower() not in _NOT_FOR_CHAT]
    key = get_header(headers, b"x-api-key")
    if key is not None and get_header(headers, b"authorization") is None:
        kept.append((b"authorization", b"Bearer " + key.encode("latin-1")))
    return [*kept, (b"content-type", b"application/json")]


def _is_kept(turn: RecordedTurn) -> bool:
    """Whether a client may read a turn back by its response id."""
    return (
        turn.api is not None
        and turn.api.get("name") == NAME
        and turn.api.get("store") is not False
        and turn.status_code < 400
    )


def _synthesizer_of(turn: RecordedTurn) -> ResponseSynthesizer:
    detail = turn.api or {}
    instructions = instructions_of(turn.messages, detail)
    return ResponseSynthesizer(turn.request, detail, instructions=instructions, created_at=turn.created_at)
