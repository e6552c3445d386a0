"""Canonical keys: by what a conversation is recognised when its client re-sends it. Sans-IO.

A request names its own parent by carrying the history, so identity is a hash chain: equal prefixes, equal keys. Clients do not
re-send quite what they got, though, and the chain is over a form that absorbs what they change (every item was seen in
real traffic):

* content as string, list of parts, null, empty or absent; white space trimmed or re-flowed;
* reasoning dropped, or re-wrapped as ``<think>``; ``reasoning_content`` beside the content;
* tool-call ids re-issued, arguments re-serialised (spaces, key order), results of parallel calls reordered;
* system and developer messages changed, added or moved: they are no part of the chain;
* neighbouring messages of one role merged into one, or split; machine context around the person's words (`words`) that is
  gone one turn later.

These keys are for recognising only. What is stored and hashed as content is always the bytes as sent (`store.hashing`).
The chain starts from the scope, so that two people who both open with "hi" never meet.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from sys import getsizeof
from typing import Any

from proxy.earlier import goes_on
from proxy.words import collapse, content_text, own_words, spoken
from store.hashing import digest, wire_json
from store.values import Completion

Message = Mapping[str, Any]

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(slots=True, kw_only=True)
class Mark:
    """The end of a run of messages of one role.

    Attributes:
        end: messages[:end] are what ``key`` stands for.
        own: key of this run alone, whatever came before it.
        last: key of its last message alone (a summary may have been put in front of it).
        size: characters of its canonical text: how telling it is.
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
        root: key of the empty history of this scope.
        marks: one for each run, oldest first.
        preamble: key of the leading system messages (`preamble_key`).
        exact: a hash over the messages as sent, which can be gone on with.
    """

    root: str
    marks: tuple[Mark, ...]
    messages: tuple[Message, ...]
    preamble: str
    exact: Any = field(compare=False)

    @property
    def request_key(self) -> str:
        """Key of the whole history: the same prompt again has the same."""
        return self.marks[-1].key if self.marks else self.root

    @property
    def keys(self) -> list[str]:
        return [mark.key for mark in self.marks]

    @property
    def is_opening(self) -> bool:
        """Nobody has answered yet: a conversation starts (again) from its first message."""
        return not any(mark.role == "assistant" for mark in self.marks)

    def following(self, end: int) -> tuple[Message, ...]:
        return self.messages[end:]


def read_history(
    messages: Sequence[Message], scope: str, user: str | None = None, before: History | None = None
) -> History:
    """Return the canonical chain of ``messages``; ``scope`` (the key) and ``user`` keep people apart.

    Args:
        before: a history of the first of these very messages; what it says of them is not looked for again.
    """
    root = _root(scope, user or "")
    if before is not None and before.root == root and goes_on(messages, before.messages):
        longer = _longer(before, messages)
        if longer is not None:
            return longer
    marks = _plain_marks(root, messages)
    if marks is None:
        runs = _runs(messages)
        if not runs and messages:
            # only system messages, or only machine context: still a prompt, and a different one each time it differs
            whole = collapse("\n".join(content_text(m.get("content")) for m in messages))
            runs = [_Run("system", [whole], len(messages))]
        marks = _marks(root, runs)
    return _history(root, marks, messages)


@lru_cache(maxsize=1024)
def _root(scope: str, user: str) -> str:
    return digest("patina-history", scope, user)


def _history(root: str, marks: Sequence[Mark], messages: Sequence[Message]) -> History:
    exact = blake2b(digest_size=16)
    for message in messages:
        exact.update(_exact(message))
    return History(
        root=root,
        marks=tuple(marks),
        messages=tuple(messages),
        preamble=preamble_key(messages),
        exact=exact,
    )


def _longer(before: History, messages: Sequence[Message]) -> History | None:
    """Return the history of ``messages``, the first of which are those of ``before``; None where what was read of them may not stand."""
    count = len(before.messages)
    if not before.marks or before.marks[-1].end != count or before.marks[-1].role == "system":
        return None  # something stands behind its last words, or it had none
    last, new = before.marks[-1], messages[count:]
    marks = _plain_marks(last.key, new, last.role, count)
    if marks is None:
        runs = _runs(new)
        roles = [_role(message) for message in new if message.get("role") not in _SYSTEM_ROLES]
        # Every change of role has its run: none was empty, which would make one of its neighbours.
        changes = sum(role != earlier for role, earlier in zip(roles, [last.role, *roles], strict=False))
        if not roles or roles[0] == last.role or len(runs) != changes:
            return None
        for run in runs:
            run.end += count
        marks = _marks(last.key, runs)
    exact = before.exact.copy()
    for message in new:
        exact.update(_exact(message))
    return History(
        root=before.root,
        marks=(*before.marks, *marks),
        messages=tuple(messages),
        preamble=before.preamble,
        exact=exact,
    )


def _exact(message: Message) -> bytes:
    return wire_json(message).encode("utf-8", "surrogatepass") + b"\n"


def body_key(history: History, request: Mapping[str, Any]) -> str:
    """Return the key of a whole request, of which ``request`` is all but the messages.

    Order of keys included: a resend is the same bytes, and anything else is another request. Only the seed is left out: clients draw
    one anew for each try.
    """
    exact = history.exact.copy()
    exact.update(_exact({k: v for k, v in request.items() if k != "seed"} if "seed" in request else request))
    return digest(history.request_key, exact.hexdigest())


def _plain_marks(key: str, messages: Sequence[Message], before: str = "", end: int = 0) -> list[Mark] | None:
    """Return the marks of a history in which a user and an assistant take turns in plain words, as most do; None for any other.

    Args:
        key, before, end: of what stands in front of these messages: its key, its last role, its length.
    """
    marks: list[Mark] = []
    for message in messages:
        end += 1
        role, content = message.get("role"), message.get("content")
        if role in _SYSTEM_ROLES:
            continue
        if role == before or type(content) is not str or (role != "user" and role != "assistant"):
            return None
        if role == "assistant" and (message.get("tool_calls") or message.get("function_call")):
            return None
        text, own = _MEMORY.text(role, content)
        if not text:
            return None
        key, before = digest(key, own), role
        marks.append(Mark(key=key, role=role, end=end, own=own, last=own, size=len(text)))
    return marks or None


def _marks(key: str, runs: Sequence[_Run]) -> list[Mark]:
    marks: list[Mark] = []
    for run in runs:
        own = run.digest()
        key = digest(key, own)
        last = own if run.is_one_text else digest(run.role, run.texts[-1] if run.texts else "")
        marks.append(Mark(key=key, role=run.role, end=run.end, own=own, last=last, size=run.size()))
    return marks


def preamble_key(messages: Sequence[Message]) -> str:
    """Return the key of the leading system messages: which assistant, character or mode was spoken to."""
    texts = []
    for message in messages:
        if message.get("role") not in _SYSTEM_ROLES:
            break
        texts.append(collapse(content_text(message.get("content"))))
    return digest(*texts) if texts else _NO_PREAMBLE


_NO_PREAMBLE = digest()


def reply_key(history: History, completion: Completion) -> str:
    """Return the key of ``history`` plus the reply, as a client will re-send it in the next request."""
    message = assistant_message(completion)
    if not completion.tool_calls and not (history.marks and history.marks[-1].role == "assistant"):
        text, own = _MEMORY.text("assistant", completion.text)
        if text:
            return digest(history.request_key, own)
    if history.marks and history.marks[-1].role == "assistant":
        # The request ended with the assistant's own words (a prefill): the client will send both as one message or two.
        extended = read_history_from(history, [*history.messages, message])
        return extended.request_key
    run = _Run("assistant", [], len(history.messages) + 1)
    run.add(message)
    return digest(history.request_key, run.digest())


def read_history_from(history: History, messages: Sequence[Message]) -> History:
    """Return the chain of ``messages`` under the same root as ``history``."""
    return _history(history.root, _marks(history.root, _runs(messages)), messages)


def reply_mark(completion: Completion) -> tuple[str, int]:
    """Return (key of the reply alone, its canonical size), comparable with an assistant `Mark`'s own and size."""
    if not completion.tool_calls:
        text, own = _MEMORY.text("assistant", completion.text)
        if text:
            return own, len(text)
    run = _Run("assistant", [], 0)
    run.add(assistant_message(completion))
    return run.digest(), run.size()


def assistant_message(completion: Completion) -> dict[str, Any]:
    """Return the reply as the message that a client appends to its history."""
    message: dict[str, Any] = {"role": "assistant", "content": completion.text}
    if completion.tool_calls:
        message["tool_calls"] = list(completion.tool_calls)
    return message


class _Memory:
    """The canonical texts of the messages read last: each request sends all the earlier ones again. Bounded by what they take, bytes."""

    #: Of one entry beside its two texts: two tuples, the key of a run, and its place in the dictionary. Most messages are shorter than that.
    _OVERHEAD = 400

    def __init__(self, capacity: int = 16 << 20) -> None:
        self._capacity = capacity
        self._size = 0
        self._texts: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()

    def text(self, role: str, content: str) -> tuple[str, str]:
        """Return the canonical text of what the assistant or a user said, and its key as a run of its own."""
        key = (role, content)
        known = self._texts.get(key)
        if known is not None:
            self._texts.move_to_end(key)
            return known
        text = collapse(spoken(content) if role == "assistant" else own_words(content))
        known = self._texts[key] = text, digest(role, text)
        self._size += self._taken(content, text)
        while self._size > self._capacity:
            (_, old), (gone, _) = self._texts.popitem(last=False)
            self._size -= self._taken(old, gone)
        return known

    def _taken(self, content: str, text: str) -> int:
        return getsizeof(content) + getsizeof(text) + self._OVERHEAD


_MEMORY = _Memory()


class _Run:
    """Neighbouring messages of one role, gathered into one canonical unit."""

    __slots__ = ("_own", "calls", "end", "role", "texts")

    def __init__(self, role: str, texts: list[str], end: int) -> None:
        self.role = role
        self.texts = texts
        self.calls: list[str] = []
        self.end = end
        self._own: str | None = None  # key of the run if its only text is a remembered one

    def add(self, message: Message) -> None:
        own: str | None = None
        if self.role == "assistant":
            text, own = _MEMORY.text("assistant", content_text(message.get("content")))
            if not text:
                own, refusal = None, message.get("refusal")
                text = collapse(refusal) if isinstance(refusal, str) else ""
            self.calls.extend(_calls(message))
        elif self.role == "user":
            text, own = _MEMORY.text("user", content_text(message.get("content")))
            self.texts.extend(_other_parts(message.get("content")))
        else:
            text = collapse(content_text(message.get("content")))
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
        # Joined, not listed: two messages merged into one are the same words.
        return digest(self.role, " ".join(self.texts), *self.calls)

    def size(self) -> int:
        return sum(map(len, self.texts)) + sum(map(len, self.calls))


def _role(message: Message) -> str:
    role = message.get("role")
    return "tool" if role in ("tool", "function") else str(role)


def _runs(messages: Sequence[Message]) -> list[_Run]:
    runs: list[_Run] = []
    current: _Run | None = None
    for position, message in enumerate(messages):
        role = message.get("role")
        if role in _SYSTEM_ROLES:
            continue
        name = _role(message)
        if current is None or current.role != name:
            if current is not None and current.is_empty:
                # machine context only: as if it had not been there, so that its neighbours meet
                runs.pop()
                current = runs[-1] if runs else None
            if current is None or current.role != name:
                current = _Run(name, [], position + 1)
                runs.append(current)
        current.add(message)
        current.end = position + 1
    if current is not None and current.is_empty:
        runs.pop()
    return runs


def _calls(message: Message) -> list[str]:
    found = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, Sequence) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            found.append(f"{function.get('name')}({canonical_arguments(function.get('arguments'))})")
    single = message.get("function_call")
    if isinstance(single, Mapping):
        found.append(f"{single.get('name')}({canonical_arguments(single.get('arguments'))})")
    return found


def canonical_arguments(arguments: Any) -> str:
    """Return arguments as sorted compact JSON; text that is no JSON only loses its white space."""
    try:
        said = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return collapse(str(arguments)).replace(" ", "")


def _other_parts(content: Any) -> list[str]:
    """Return a stand-in for every part that is not text: an image is part of what was asked."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return []
    return [
        "[" + digest(json.dumps(part, sort_keys=True, ensure_ascii=False)) + "]"
        for part in content
        if isinstance(part, Mapping) and not isinstance(part.get("text"), str)
    ]
