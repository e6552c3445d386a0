"""Conversations of the Responses API: a name under which turns follow each other. Their turns are in the record.

What a client creates, adds and deletes are rows; the other items are those of the turns of the session of this name
(`wire.responses_api.conversation`).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.types import Receive, Scope, Send

from proxy.answers import answering_errors
from proxy.asgi import read_json, send_json
from proxy.item_pages import includes_logprobs, list_of, page, read_metadata, read_query
from store.record_handle import RecordHandle
from store.values import Conversation, Json, RecordedTurn
from wire.api_translation import Untranslatable, read_object
from wire.responses_api.conversation import shown_items
from wire.responses_api.items import messages_of, shown_item

log = logging.getLogger(__name__)

PREFIX = "/v1/conversations"
_MAX_ITEMS = 20

#: Returns the finished turns of a key's conversation.
ConversationTurns = Callable[[str, str], Awaitable[list[RecordedTurn]]]


class Conversations:
    """Serves ``/v1/conversations``."""

    def __init__(self, record: RecordHandle, turns: ConversationTurns) -> None:
        self._record = record
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, key_name: str, path: str) -> None:
        conversation_id, _, action = path.removeprefix(PREFIX).removeprefix("/").partition("/")
        method: str = scope["method"]
        async with answering_errors(send, "a conversation could not be read or changed"):
            body = (
                read_object(await read_json(receive, scope["headers"]) or b"{}") if method == "POST" else {}
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
            part, _, item_id = action.partition("/")
            if part == "items":
                query: bytes = scope.get("query_string") or b""
                await send_json(send, 200, await self._items(method, key_name, found, item_id, body, query))
            elif action:
                raise Untranslatable(
                    "A conversation has no other part than its items: /v1/conversations/{id}/items.",
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
                    found = replace(found, metadata=metadata)
                await send_json(send, 200, _shown(found))

    async def _create(self, key_name: str, body: Json) -> Json:
        items = _read_items(body)
        made = Conversation(
            conversation_id=f"conv_{uuid.uuid4().hex}", metadata=read_metadata(body), created_at=time.time()
        )
        await (await self._record.get()).add_conversation(key_name, made, items)
        return _shown(made)

    async def _items(
        self,
        method: str,
        key_name: str,
        found: Conversation,
        item_id: str,
        body: Json,
        query: bytes,
    ) -> Json:
        """Add, list, read or delete items. Raises: Untranslatable, RecordError."""
        record = await self._record.get()
        if method == "POST" and not item_id:
            if not (items := _read_items(body)):
                raise Untranslatable(
                    "Missing required parameter: 'items'.", code="missing_required_parameter", param="items"
                )
            added = await record.add_items(found.conversation_id, items)
            return list_of([shown_item(one.item, one.item_id) for one in added], has_more=False)
        if method == "POST" or (method == "DELETE" and not item_id):
            raise Untranslatable("Items are added to the list, and deleted one by one.", status=405)
        turns = await self._turns(key_name, found.conversation_id)
        shown = shown_items(found, turns, with_logprobs=includes_logprobs(query))
        if not item_id:
            return page(shown[::-1], read_query(query))
        item = next((one for one in shown if one["id"] == item_id), None)
        if item is None:
            raise Untranslatable(
                f"Item with id '{item_id}' not found in conversation '{found.conversation_id}'.", status=404
            )
        if method == "DELETE":
            await record.delete_item(found.conversation_id, item_id)
            return _shown(found)
        return item


def _read_items(body: Json) -> list[Json]:
    """Return the items that a request adds. Raises: Untranslatable: what could not be served later."""
    items: Any = body.get("items") or []
    if not isinstance(items, list) or len(items) > _MAX_ITEMS:
        raise Untranslatable(f"items must be a list of at most {_MAX_ITEMS} items.", param="items")
    messages_of(items, {}, name="items")
    return items


def _shown(found: Conversation) -> Json:
    return {
        "id": found.conversation_id,
        "object": "conversation",
        "created_at": int(found.created_at),
        "metadata": found.metadata,
    }
