"""Canonical keys: recognise a conversation when its client sends it again. Sans-IO.

A request names its own parent by carrying the history, so identity is a hash chain: equal prefixes have equal keys. Clients do not send
back exactly what they received. The chain is therefore computed over a form that absorbs these changes (each was seen in real traffic):

* content as string, list of parts, null, empty or absent; white space trimmed or re-flowed;
* reasoning dropped, or wrapped as ``<think>``; ``reasoning_content`` beside the content;
* tool-call ids re-issued, arguments re-serialised (spaces, key order), results of parallel calls reordered;
* system and developer messages changed, added or moved: they are not part of the chain;
* adjacent messages of one role merged or split; client context around the user's text (`user_text`) that is removed one turn later.

The keys only recognise conversations. Stored content and its hashes always use the bytes as sent (`store.hashing`).
The chain starts from the name of the key, so that two users who both open with "hi" never share a session.
"""

from __future__ import annotations

import itertools
import json
import string
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from sys import getsizeof
from typing import Any

from store.hashing import digest, wire_json
from store.texts import content_text
from store.values import Completion
from wire.prefix_cache import extends
from wire.user_text import collapse_whitespace, strip_client_context, strip_reasoning

Message = Mapping[str, Any]

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(slots=True, kw_only=True)
class RoleRun:
    """A run of adjacent messages of one role.

    Attributes:
        key: chain key of everything up to here.
        end: ``key`` covers messages[:end].
        own: key of this run alone.
        last: key of its last message alone (a summary may stand before it).
        size: characters of its canonical text.
    """

    key: str
    role: str
    end: int
    own: str
    last: str
    size: int


@dataclass(slots=True, kw_only=True)
class History:
    """A request's messages as the linker sees them.

    Attributes:
        root: key of the empty history of this key.
        runs: oldest first.
        system_key: key of the leading system messages (`compute_system_key`).
        exact: a hash over the messages as sent, which can be extended.
    """

    root: str
    runs: tuple[RoleRun, ...]
    messages: tuple[Message, ...]
    system_key: str
    exact: Any = field(compare=False)

    @property
    def request_key(self) -> str:
        """Return the key of the whole history: the same prompt has the same key."""
        return self.runs[-1].key if self.runs else self.root

    @property
    def keys(self) -> list[str]:
        return [run.key for run in self.runs]

    @property
    def is_opening(self) -> bool:
        """Whether the history contains no reply: the conversation starts (again) from its first message."""
        return not any(run.role == "assistant" for run in self.runs)

    @property
    def system_text(self) -> str:
        """Return the text of the leading system messages."""
        system = itertools.takewhile(lambda message: message.get("role") in _SYSTEM_ROLES, self.messages)
        return "\n".join(content_text(message.get("content")) for message in system)

    def messages_after(self, end: int) -> tuple[Message, ...]:
        return self.messages[end:]


def parse_history(
    messages: Sequence[Message], key_name: str, user: str | None = None, previous: History | None = None
) -> History:
    """Return the canonical chain of ``messages``; ``key_name`` (the key's name) and ``user`` keep users apart.

    Args:
        previous: the history of a prefix of these very message objects; its results are reused.
    """
    root = _root(key_name, user or "")
    if previous is not None and previous.root == root and extends(messages, previous.messages):
        longer = _extend_history(previous, messages)
        if longer is not None:
            return longer
    runs = _plain_marks(root, messages)
    if runs is None:
        groups = _group_by_role(messages)
        if not groups and messages:
            # Only system messages or client context: still a prompt, with a key of its own.
            whole = collapse_whitespace("\n".join(content_text(m.get("content")) for m in messages))
            groups = [_RoleGroup("system", [whole], len(messages))]
        runs = _key_groups(root, groups)
    return _history(root, runs, messages)


@lru_cache(maxsize=1024)
def _root(key_name: str, user: str) -> str:
    return digest("patina-history", key_name, user)


def _history(root: str, runs: Sequence[RoleRun], messages: Sequence[Message]) -> History:
    exact = blake2b(digest_size=16)
    for message in messages:
        exact.update(_exact_bytes(message))
    return History(
        root=root,
        runs=tuple(runs),
        messages=tuple(messages),
        system_key=compute_system_key(messages),
        exact=exact,
    )


def _extend_history(previous: History, messages: Sequence[Message]) -> History | None:
    """Return the history of ``messages``, which extend those of ``previous``; None where the previous runs may change."""
    count = len(previous.messages)
    if not previous.runs or previous.runs[-1].end != count or previous.runs[-1].role == "system":
        return None  # text follows its last run, or it had none
    last, new = previous.runs[-1], messages[count:]
    runs = _plain_marks(last.key, new, last.role, count)
    if runs is None:
        groups = _group_by_role(new)
        roles = [_role(message) for message in new if message.get("role") not in _SYSTEM_ROLES]
        # Each change of role must have its run: an empty one would merge its neighbours.
        changes = sum(role != earlier for role, earlier in zip(roles, [last.role, *roles], strict=False))
        if not roles or roles[0] == last.role or len(groups) != changes:
            return None
        for group in groups:
            group.end += count
        runs = _key_groups(last.key, groups)
    exact = previous.exact.copy()
    for message in new:
        exact.update(_exact_bytes(message))
    return History(
        root=previous.root,
        runs=(*previous.runs, *runs),
        messages=tuple(messages),
        system_key=previous.system_key,
        exact=exact,
    )


def _exact_bytes(message: Message) -> bytes:
    return wire_json(message).encode("utf-8", "surrogatepass") + b"\n"


def body_key(history: History, request: Mapping[str, Any]) -> str:
    """Return the key of a whole request; ``request`` is its body without the messages.

    The order of keys counts: a resend has the same bytes, and anything else is another request. Only the seed is left out: samples of one
    prompt belong to one session.
    """
    exact = history.exact.copy()
    exact.update(
        _exact_bytes({k: v for k, v in request.items() if k != "seed"} if "seed" in request else request)
    )
    return digest(history.request_key, exact.hexdigest())


def _plain_marks(
    key: str, messages: Sequence[Message], previous: str = "", end: int = 0
) -> list[RoleRun] | None:
    """Return the runs of a history that alternates plain user and assistant text, as most do; None for any other.

    Args:
        key, previous, end: chain key, role and length of what precedes these messages.
    """
    runs: list[RoleRun] = []
    for message in messages:
        end += 1
        role, content = message.get("role"), message.get("content")
        if role in _SYSTEM_ROLES:
            continue
        if role == previous or type(content) is not str or (role != "user" and role != "assistant"):
            return None
        if role == "assistant" and (message.get("tool_calls") or message.get("function_call")):
            return None
        text, own = _TEXT_CACHE.text(role, content)
        if not text:
            return None
        key, previous = digest(key, own), role
        runs.append(RoleRun(key=key, role=role, end=end, own=own, last=own, size=len(text)))
    return runs or None


def _key_groups(key: str, groups: Sequence[_RoleGroup]) -> list[RoleRun]:
    runs: list[RoleRun] = []
    for group in groups:
        own = group.digest()
        key = digest(key, own)
        last = own if group.is_one_text else digest(group.role, group.texts[-1] if group.texts else "")
        runs.append(RoleRun(key=key, role=group.role, end=group.end, own=own, last=last, size=group.size()))
    return runs


def compute_system_key(messages: Sequence[Message]) -> str:
    """Return the key of the leading system messages, white space aside."""
    found = blake2b(digest_size=16)
    for message in messages:
        if message.get("role") not in _SYSTEM_ROLES:
            break
        text = content_text(message.get("content")).encode("utf-8", "surrogatepass")
        found.update(text.translate(None, _WHITE_SPACE) + b"\0")
    return found.hexdigest()


_WHITE_SPACE = string.whitespace.encode()


def reply_key(history: History, completion: Completion) -> str:
    """Return the key of ``history`` plus the reply, as the client will send it in its next request."""
    message = assistant_message(completion)
    if not completion.tool_calls and not (history.runs and history.runs[-1].role == "assistant"):
        text, own = _TEXT_CACHE.text("assistant", completion.text)
        if text:
            return digest(history.request_key, own)
    if history.runs and history.runs[-1].role == "assistant":
        # The request ended with assistant text (a prefill): the client will send both as one message or as two.
        extended = parse_history_from(history, [*history.messages, message])
        return extended.request_key
    group = _RoleGroup("assistant", [], len(history.messages) + 1)
    group.add(message)
    return digest(history.request_key, group.digest())


def parse_history_from(history: History, messages: Sequence[Message]) -> History:
    """Return the chain of ``messages`` under the same root as ``history``."""
    return _history(history.root, _key_groups(history.root, _group_by_role(messages)), messages)


def reply_run_key(completion: Completion) -> tuple[str, int]:
    """Return (key of the reply alone, its canonical size), comparable with `RoleRun.own` and `RoleRun.size` of an assistant run."""
    if not completion.tool_calls:
        text, own = _TEXT_CACHE.text("assistant", completion.text)
        if text:
            return own, len(text)
    group = _RoleGroup("assistant", [], 0)
    group.add(assistant_message(completion))
    return group.digest(), group.size()


def assistant_message(completion: Completion) -> dict[str, Any]:
    """Return the reply as the message that a client appends to its history."""
    message: dict[str, Any] = {"role": "assistant", "content": completion.text}
    if completion.tool_calls:
        message["tool_calls"] = list(completion.tool_calls)
    return message


class _TextCache:
    """Cache of canonical texts: each request repeats all earlier messages. Bounded in bytes."""

    #: Bytes of one entry beside its two texts: two tuples, a key, and a place in the dictionary.
    _OVERHEAD = 400

    def __init__(self, capacity: int = 16 << 20) -> None:
        self._capacity = capacity
        self._size = 0
        self._texts: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()

    def text(self, role: str, content: str) -> tuple[str, str]:
        """Return the canonical text of a message and its key as a run of its own."""
        key = (role, content)
        known = self._texts.get(key)
        if known is not None:
            self._texts.move_to_end(key)
            return known
        text = collapse_whitespace(
            strip_reasoning(content) if role == "assistant" else strip_client_context(content)
        )
        known = self._texts[key] = text, digest(role, text)
        self._size += self._entry_size(content, text)
        while self._size > self._capacity:
            (_, old), (gone, _) = self._texts.popitem(last=False)
            self._size -= self._entry_size(old, gone)
        return known

    def _entry_size(self, content: str, text: str) -> int:
        return getsizeof(content) + getsizeof(text) + self._OVERHEAD


_TEXT_CACHE = _TextCache()


class _RoleGroup:
    """Adjacent messages of one role, merged into one canonical unit."""

    __slots__ = ("_own", "calls", "end", "role", "texts")

    def __init__(self, role: str, texts: list[str], end: int) -> None:
        self.role = role
        self.texts = texts
        self.calls: list[str] = []
        self.end = end
        self._own: str | None = None  # key of the run if its only text is a cached one

    def add(self, message: Message) -> None:
        own: str | None = None
        if self.role == "assistant":
            text, own = _TEXT_CACHE.text("assistant", content_text(message.get("content")))
            if not text:
                own, refusal = None, message.get("refusal")
                text = collapse_whitespace(refusal) if isinstance(refusal, str) else ""
            self.calls.extend(_call_texts(message))
        elif self.role == "user":
            text, own = _TEXT_CACHE.text("user", content_text(message.get("content")))
            self.texts.extend(_non_text_parts(message.get("content")))
        else:
            text = collapse_whitespace(content_text(message.get("content")))
        if text:
            self.texts.append(text)
            self._own = own

    @property
    def is_empty(self) -> bool:
        return not self.texts and not self.calls

    @property
    def is_one_text(self) -> bool:
        return len(self.texts) == 1 and not self.calls and self.role != "tool"

    def digest(self) -> str:
        if self._own is not None and self.is_one_text:
            return self._own
        if self.role == "tool":
            return digest("tool", *sorted(self.texts))  # results of parallel calls come in any order
        # Joined, not listed: one message and the same text split in two have the same key.
        return digest(self.role, " ".join(self.texts), *self.calls)

    def size(self) -> int:
        return sum(map(len, self.texts)) + sum(map(len, self.calls))


def _role(message: Message) -> str:
    role = message.get("role")
    return "tool" if role in ("tool", "function") else str(role)


def _group_by_role(messages: Sequence[Message]) -> list[_RoleGroup]:
    groups: list[_RoleGroup] = []
    current: _RoleGroup | None = None
    for position, message in enumerate(messages):
        role = message.get("role")
        if role in _SYSTEM_ROLES:
            continue
        name = _role(message)
        if current is None or current.role != name:
            if current is not None and current.is_empty:
                # Client context only: dropped, so that its neighbours become adjacent.
                groups.pop()
                current = groups[-1] if groups else None
            if current is None or current.role != name:
                current = _RoleGroup(name, [], position + 1)
                groups.append(current)
        current.add(message)
        current.end = position + 1
    if current is not None and current.is_empty:
        groups.pop()
    return groups


def _call_texts(message: Message) -> list[str]:
    found = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, Sequence) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            found.append(f"{function.get('name')}({canonical_arguments(function.get('arguments'))})")
        custom = call.get("custom") if isinstance(call, Mapping) else None
        if isinstance(custom, Mapping):
            found.append(f"{custom.get('name')}({custom.get('input')})")
    single = message.get("function_call")
    if isinstance(single, Mapping):
        found.append(f"{single.get('name')}({canonical_arguments(single.get('arguments'))})")
    return found


def canonical_arguments(arguments: Any) -> str:
    """Return arguments as sorted compact JSON; text that is not JSON only loses its white space."""
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return collapse_whitespace(str(arguments)).replace(" ", "")


def _non_text_parts(content: Any) -> list[str]:
    """Return a placeholder for every part that is not text: an image is part of the prompt."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return []
    return [
        "[" + digest(json.dumps(part, sort_keys=True, ensure_ascii=False)) + "]"
        for part in content
        if isinstance(part, Mapping) and not isinstance(part.get("text"), str)
    ]
