"""Conversations of the Responses API: a name under which turns follow each other. Their turns are in the record.

What a client creates is a row; the items that follow are the turns of the session of this name.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from proxy.asgi import BodyTooLarge, ClientDisconnected, read_body, send_error, send_json
from proxy.item_pages import page, read_metadata, read_query
from store.errors import RecordError
from store.record_handle import RecordHandle
from store.values import Conversation, Json, RecordedTurn
from wire.api_translation import Untranslatable, read_object
from wire.headers import content_length
from wire.responses_api.items import input_items, messages_of
from wire.responses_api.request import history_of

log = logging.getLogger(__name__)

PREFIX = "/v1/conversations"
_MAX_ITEMS = 20

#: Returns the newest turn of a conversation.
NewestTurn = Callable[[str, str], Awaitable[RecordedTurn | None]]


class Conversations:
    """Serves ``/v1/conversations``."""

    def __init__(self, record: RecordHandle, newest_turn: NewestTurn) -> None:
        self._record = record
        self._newest_turn = newest_turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, key_name: str, path: str) -> None:
        conversation_id, _, action = path.removeprefix(PREFIX).removeprefix("/").partition("/")
        method: str = scope["method"]
        try:
            body = (
                read_object(await read_body(receive, content_length(scope["headers"])) or b"{}")
                if method == "POST"
                else {}
            )
            if not conversation_id:
                if method != "POST":
                    raise Untranslatable(
                        "Conversations are created with POST and read by their id.", status=405
                    )
                await send_json(send, 200, await self._create(key_name, body))
                return
            record = await self._record.get()
            found = await record.conversation(key_name, conversation_id)
            if found is None:
                raise Untranslatable(f"Conversation with id '{conversation_id}' not found.", status=404)
            if action == "items" and method == "GET":
                options = read_query(scope.get("query_string") or b"")
                await send_json(send, 200, page(await self._items(key_name, found), options))
            elif action:
                raise Untranslatable(
                    "Items of a conversation are added by its responses, and forgotten with the conversation.",
                    status=404,
                )
            elif method == "DELETE":
                await record.delete_conversation(conversation_id)
                await send_json(
                    send, 200, {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
                )
            else:
                if method == "POST":
                    metadata = read_metadata(body)
                    await record.update_conversation(conversation_id, metadata)
                    found = Conversation(
                        conversation_id=conversation_id,
                        metadata=metadata,
                        items=found.items,
                        created_at=found.created_at,
                    )
                await send_json(send, 200, _shown(found))
        except ClientDisconnected:
            return
        except BodyTooLarge:
            await send_error(send, 413, "The request body is larger than 64 MB.", code="request_too_large")
        except Untranslatable as exc:
            await send_error(send, exc.status, str(exc), param=exc.param)
        except RecordError as exc:
            log.warning("a conversation could not be read: %s", exc)
            await send_error(
                send, 503, "The record cannot be read now. Retry the request.", kind="server_error"
            )

    async def _create(self, key_name: str, body: Json) -> Json:
        items = body.get("items") or []
        if not isinstance(items, list) or len(items) > _MAX_ITEMS:
            raise Untranslatable(f"items must be a list of at most {_MAX_ITEMS} items.", param="items")
        messages_of(items, {})  # refuses what could not be served later
        made = Conversation(
            conversation_id=f"conv_{uuid.uuid4().hex}",
            metadata=read_metadata(body),
            items=items,
            created_at=time.time(),
        )
        await (await self._record.get()).add_conversation(key_name, made)
        return _shown(made)

    async def _items(self, key_name: str, found: Conversation) -> list[Json]:
        """Return the items of a conversation, the newest first."""
        newest = await self._newest_turn(key_name, found.conversation_id)
        messages = history_of(newest) if newest is not None else messages_of(found.items, {})
        return input_items(messages, found.conversation_id)[::-1]


def _shown(found: Conversation) -> Json:
    return {
        "id": found.conversation_id,
        "object": "conversation",
        "created_at": int(found.created_at),
        "metadata": found.metadata,
    }
