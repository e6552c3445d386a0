"""Main or side: does the person (or their agent) speak, or is it the client's housekeeping? Sans-IO.

Rules are data: one table, each with the reason it gives. Neither the presence of tools nor streaming nor a short prompt tells
anything (all were seen on both sides), so the rules read *what is asked*, in words that any client would use for that chore.
They look at the beginning and the end of the newest user messages: the middle may quote a whole conversation, and what is
quoted was not asked. Explicit headers win over everything here (`proxy.ours`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.words import content_text, own_words
from store.values import TurnKind

Message = Mapping[str, Any]

#: How much of a text's beginning and end is taken as the request itself.
_HEAD, _TAIL = 900, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the rules may look at.

    Attributes:
        asked: the newest user messages (since the last answer), as sent.
        request: beginning and end of their words, machine context apart.
        system: beginning of the leading system messages.
        answers: number of assistant messages in the history.
        is_structured: the reply must follow a given JSON schema or call one given function.
        max_tokens: the client's limit, if it set one.
    """

    asked: str
    request: str
    system: str
    answers: int
    is_structured: bool
    max_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    kind: TurnKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A chore: it holds when every given part does.

    Attributes:
        asks: pattern in the request.
        system: pattern in the system prompt.
        fresh: the history holds no answer yet (True), holds one (False), or either (None).
        when: any further condition.
    """

    reason: str
    asks: re.Pattern[str] | None = None
    system: re.Pattern[str] | None = None
    fresh: bool | None = None
    when: Callable[[View], bool] | None = None

    def holds(self, view: View) -> bool:
        if self.fresh is not None and self.fresh != (view.answers == 0):
            return False
        if self.asks is not None and not self.asks.search(view.request):
            return False
        if self.system is not None and not self.system.search(view.system):
            return False
        return self.when is None or self.when(view)


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


_CONTAINER = re.compile(r"<(chat_?history|conversation|transcript|messages|dialogue?)\b[^>]*>", re.IGNORECASE)
_ANSWER_IT = _re(r"\b(respond to|answer) the (user|question|query)|\b(assistant|ai)\W{0,3}:\s*\Z")


def _quotes_conversation(view: View) -> bool:
    """A conversation stands in a container inside one message, and the person's question is not what is to be answered."""
    return bool(_CONTAINER.search(view.asked)) and not _ANSWER_IT.search(view.request)


_GREETING = _re(r"\A\W*(ping|test|testing|hi|hello|hey)\W*\Z")


def _is_probe(view: View) -> bool:
    """Is anybody there: room for one token, or for a few after a bare greeting."""
    if view.max_tokens is None or view.answers:
        return False
    return view.max_tokens == 1 or (view.max_tokens <= 5 and bool(_GREETING.match(view.request)))


_MAKE = r"\b(generate|create|write|suggest|provide|give|propose|come up with|produce|return|pick)\b"
_TALK = (
    r"\b(conversations?|chats?|dialogs?|dialogues?|discussions?|sessions?|threads?|messages?|transcripts?)\b"
)

#: The table. Order matters only for which reason is given.
RULES: tuple[Rule, ...] = (
    # -- names and labels for a conversation
    Rule(
        reason="title",
        asks=_re(rf"{_MAKE}.{{0,80}}\b(title|headline|subject line|name)\b.{{0,120}}{_TALK}"),
        fresh=True,
    ),
    Rule(reason="title", asks=_re(rf"{_TALK}.{{0,120}}\b(chat|conversation|session|thread) (title|name)\b")),
    Rule(
        reason="title",
        asks=_re(r"\b(summari[sz]e|describe|name)\b.{0,60}\b(in|with) \S{1,12} (words|characters)\b.{0,60}\btitle"),
    ),
    Rule(reason="title", system=_re(rf"{_MAKE}.{{0,60}}\btitles?\b.{{0,80}}{_TALK}"), when=lambda v: v.answers <= 1),
    Rule(reason="slug", asks=_re(rf"{_MAKE}.{{0,60}}\b(slug|file ?name|branch name)\b.{{0,200}}\b(hyphen|kebab|only|extension|lowercase)")),
    Rule(reason="tags", asks=_re(rf"{_MAKE}.{{0,40}}\b(tags|labels|categories|keywords)\b.{{0,120}}{_TALK}"), fresh=True),
    Rule(reason="emoji", asks=_re(r"\b(fitting|single|suitable|appropriate|one) emoji\b.{0,200}\bmessage\b"), fresh=True),
    Rule(reason="commit_message", asks=_re(rf"{_MAKE}.{{0,40}}\b(commit message|pull request (title|description))\b.{{0,400}}\bdiff\b"), fresh=True),
    # -- what the person may say or search next
    Rule(
        reason="follow_ups",
        asks=_re(r"\b(predict|suggest|generate|propose)\b.{0,60}\b(follow[- ]?ups?|questions|prompts|messages|replies)\b.{0,80}\b(user|next)\b"),
        when=lambda v: v.answers == 0 or bool(re.search(r"\b(json|list|array)\b", v.request, re.IGNORECASE)),
    ),
    Rule(reason="search_queries", asks=_re(r"\b(generat|formulat|determin|writ)\w*\b.{0,80}\bsearch quer(y|ies)\b"), fresh=True),
    Rule(reason="search_queries", system=_re(r"\b(formulate|rephrase|rewrite|condense|generate|create)\b.{0,120}\b(standalone|stand-alone|search) (question|quer)")),
    Rule(reason="search_queries", asks=_re(r"\b(rephrase|rewrite|condense)\b.{0,120}\b(standalone|stand-alone|search) (question|quer)"), fresh=True),
    Rule(reason="autocomplete", asks=_re(r"\bauto-?complet(e|ion)\b.{0,40}\b(system|engine|assistant|task)\b"), fresh=True),
    Rule(reason="autocomplete", system=_re(r"\b(auto-?complet(e|ion)|code completion|fill[- ]in[- ]the[- ]middle)\b.{0,40}\b(system|engine|assistant|model)\b"), fresh=True),
    # -- keeping the context small
    Rule(
        reason="summary",
        asks=_re(rf"\bsummari[sz](e|ing)\b.{{0,60}}\b(the|this|our|following|above|lines of)\b.{{0,30}}(\bhistory\b|{_TALK})"),
        fresh=True,
    ),
    Rule(
        reason="summary",
        asks=_re(rf"\b(summary|summari[sz]e)\b.{{0,80}}(\bhistory\b|{_TALK}).{{0,300}}\b(replace|continu|resume|compact|hand ?off|context window|successor|new session)"),
    ),
    Rule(reason="summary", system=_re(r"\b(summari[sz]ation|summari[sz]ing|compaction) (assistant|agent|engine|system|component|task|expert)\b")),
    Rule(reason="summary", asks=_re(r"\bextract\b.{0,80}\b(context|facts)\b.{0,80}\bconversation\b"), fresh=True),
    # -- memory
    Rule(reason="memory", asks=_re(r"\b(memory (flush|extraction|consolidation|update task|checkpoint)|durable memor|managed memory)\b")),
    Rule(reason="memory", system=_re(r"\bmemory[- ](extraction|consolidation|manager|curator|update|writer|agent|assistant)\b")),
    Rule(reason="memory", asks=_re(rf"\b(extract|identify|review)\b.{{0,100}}\b(memor(y|ies)|facts|preferences|learnings)\b.{{0,100}}{_TALK}"), fresh=True),
    Rule(reason="memory", asks=_re(r"\breview (the|this) (conversation|session|chat)\b.{0,160}\b(save|update|memor|skill|remember)")),
    # -- clocks and machines
    Rule(reason="heartbeat", asks=re.compile(r"\bHEARTBEAT(_OK|\.md)?\b|\b[Hh]eartbeat (poll|check|prompt|tick|turn|wake|monitor)")),
    Rule(reason="heartbeat", asks=re.compile(r"\b[Ii]f (there is )?nothing\b.{0,80}\b(reply|respond|answer)( only| with)* `?[A-Z]+_[A-Z_]+\b", re.DOTALL)),
    Rule(reason="cron", asks=_re(r"\A\W{0,4}\[?(cron(:|\b.{0,40}\b(job|run))|scheduled (task|job|run|reminder)\b)")),
    Rule(reason="subagent", asks=_re(r"\A.{0,200}(\[subagent\b|\bsub-?agent (context|task|run)\b|you are (running as )?a sub-?agent\b)")),
    Rule(reason="announce", asks=_re(r"\b(background (task|process|job)|sub-?agent)\b.{0,60}\b(completed|finished|ended|failed)\b.{0,300}\b(internal|deliver|announce|result)")),
    Rule(reason="announce", when=lambda v: bool(re.search(r"\b(background task|internal task|sub-?agent)\b.{0,40}\bcomplet", v.asked[:1500], re.IGNORECASE | re.DOTALL)) and not v.request.strip()),
    Rule(reason="probe", when=_is_probe),
    # -- agents among themselves
    Rule(reason="speaker_selection", asks=_re(r"\bselect (the )?next (role|speaker|agent)\b")),
    Rule(reason="guardrail", system=_re(r"\A\W{0,4}(you (check|decide|detect|classify)|check|decide|determine|detect|classify|judge|evaluate|assess|flag)\b.{0,80}\b(if|whether|for)\b"), when=lambda v: v.is_structured),
    Rule(reason="judge", system=_re(r"\byou are an? (\w+ ){0,3}(judge|evaluator|grader|critic|reviewer of (answers|responses))\b")),
    Rule(reason="judge", asks=_re(r"\b(rate|score|grade|evaluate|compare)\b.{0,60}\b(the )?(assistant'?s?|model'?s?|ai'?s?)\b.{0,20}\b(response|answer|reply|output)"), fresh=True),
    Rule(reason="planning", asks=_re(r"\bfacts survey\b|\bsurvey of (the )?facts\b")),
    Rule(reason="merge", asks=_re(r"\bsynthesi[sz]e\b.{0,60}\bresponses\b.{0,60}\bsingle\b|\bset of responses from (various|several|multiple) models\b"), fresh=True),
    Rule(reason="structured_one_off", fresh=True, when=lambda v: v.is_structured),
    # -- anything else that works on a conversation instead of having one
    Rule(reason="quoted_conversation", fresh=True, when=_quotes_conversation),
)  # fmt: skip


def read_view(messages: Sequence[Message], request: Mapping[str, Any]) -> View:
    """Return what the rules may see of a request; ``request`` is its body, with or without messages."""
    answered = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    newest = messages[answered[-1] + 1 :] if answered else messages
    texts = [content_text(m.get("content")) for m in newest if m.get("role") == "user"]
    words = "\n".join(bare for bare in map(own_words, texts) if bare)
    system = "\n".join(
        content_text(m.get("content")) for m in messages[:8] if m.get("role") in ("system", "developer")
    )
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    return View(
        asked="\n".join(texts),
        request=words if len(words) <= _HEAD + _TAIL else f"{words[:_HEAD]}\n…\n{words[-_TAIL:]}",
        system=system[:_HEAD],
        answers=len(answered),
        is_structured=_is_structured(request),
        max_tokens=limit if isinstance(limit, int) else None,
    )


def _is_structured(request: Mapping[str, Any]) -> bool:
    response_format = request.get("response_format")
    if isinstance(response_format, Mapping) and response_format.get("type") in ("json_schema", "json_object"):
        return True
    choice = request.get("tool_choice")
    tools = request.get("tools")
    return isinstance(choice, Mapping) or (
        choice == "required" and isinstance(tools, list) and len(tools) == 1
    )


def classify(messages: Sequence[Message], request: Mapping[str, Any]) -> Kind:
    """Return main or side with the reason; plain chat is main."""
    view = read_view(messages, request)
    for rule in RULES:
        if rule.holds(view):
            return Kind(kind=TurnKind.SIDE, reason=rule.reason)
    return Kind(kind=TurnKind.MAIN, reason="conversation")
