"""Main or side, by what is asked."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.classify import RULES, classify
from store.values import TurnKind

QUOTED = "<chat_history>\nUSER: Where is Oslo?\nASSISTANT: In Norway.\n</chat_history>"


def ask(text: str, *, system: str = "", history: int = 0, **request: Any) -> tuple[TurnKind, str]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for i in range(history):
        messages += [
            {"role": "user", "content": f"question {i}"},
            {"role": "assistant", "content": f"answer {i}"},
        ]
    messages.append({"role": "user", "content": text})
    kind = classify(messages, request)
    return kind.kind, kind.reason


@pytest.mark.parametrize(
    ("reason", "text", "more"),
    [
        ("title", f"Generate a short title for this chat.\n{QUOTED}", {}),
        ("title", "Summarize this conversation in 5 words or less, for use as a chat title.", {"history": 2}),
        ("slug", "Generate a short filename slug, lowercase, hyphen-separated.", {}),
        ("tags", f"Generate three tags that categorize the conversation.\n{QUOTED}", {}),
        ("emoji", "Pick one emoji that fits. Message: ```hurray```", {}),
        ("commit_message", "Write a commit message for this diff:\n```diff\n+x\n```", {}),
        ("follow_ups", f"Suggest three follow-up questions the user could ask next.\n{QUOTED}", {}),
        ("search_queries", f"Generate a search query for the last question.\n{QUOTED}", {}),
        ("search_queries", "And in Rome?", {"system": "Given a history, rephrase it as a standalone question.", "history": 1}),
        ("autocomplete", "You are an autocompletion system. Continue: How do I re", {}),
        ("summary", "Summarize the following conversation so that it can replace it:\nuser: a\nassistant: b", {}),
        ("summary", "<conversation>…</conversation>", {"system": "You are a context summarization assistant."}),
        ("memory", "Pre-compaction memory flush: store what matters.", {"history": 3}),
        ("memory", "Go on.", {"system": "You are the memory extraction agent.", "history": 1}),
        ("heartbeat", "HEARTBEAT: look at your list. If nothing needs attention, reply HEARTBEAT_OK.", {"history": 2}),
        ("heartbeat", "Check the inbox. If nothing is new, reply only NO_REPLY.", {"history": 1}),
        ("cron", "[cron:daily] collect the news", {}),
        ("subagent", "[Subagent Context] You are a subagent. Find the price.", {}),
        ("probe", "Where is Oslo?", {"max_tokens": 1}),
        ("probe", "ping", {"max_tokens": 5}),
        ("speaker_selection", "Read it. Then select the next speaker from [a, b].", {}),
        ("guardrail", "Write a poem", {"system": "Check if the user asks for something off topic.", "response_format": {"type": "json_schema"}}),
        ("judge", "…", {"system": "You are an impartial judge."}),
        ("structured_one_off", "Rate this review: nice.", {"response_format": {"type": "json_schema"}}),
        ("quoted_conversation", f"{QUOTED}\nWhat language is it in?", {}),
    ],
)  # fmt: skip
def test_housekeeping_is_side_with_its_reason(reason: str, text: str, more: dict[str, Any]) -> None:
    assert ask(text, **more) == (TurnKind.SIDE, reason)


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("hi", {}),
        ("What is a good title for my novel about a lighthouse?", {}),
        ("Summarize everything in one sentence.", {"history": 4}),
        ("Please remember that I like it short.", {"history": 1}),
        ("### Task:\nRespond to the user query using the context.\n<context>x</context>\nWhere is Oslo?", {}),
        (f"Answer the question with this context.\n{QUOTED}\nAnswer the user question: where is Oslo?", {}),
        ("The following is a friendly talk.\nHuman: hi\nAI: hello\nHuman: where is Oslo?\nAI:", {}),
        ("Return JSON please", {"history": 1, "response_format": {"type": "json_object"}}),
        ("yes", {"history": 1, "max_tokens": 1}),
        ("Where is Oslo?", {"max_tokens": 5}),
        ("Write a commit message for my last change", {"history": 2}),
        ("How do heartbeats work in Raft?", {}),
    ],
)
def test_what_a_person_asks_is_main(text: str, more: dict[str, Any]) -> None:
    assert ask(text, **more)[0] is TurnKind.MAIN


def test_a_marker_beside_the_persons_words_does_not_make_them_housekeeping() -> None:
    assert ask("[App heartbeat poll]\nWrite to my landlord.", history=1)[0] is TurnKind.MAIN


def test_tools_and_streaming_tell_nothing() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert ask("hi", tools=tools, stream=True) == ask("hi", stream=False)
    title = f"Generate a short title for this chat.\n{QUOTED}"
    assert ask(title, tools=tools, stream=True) == (TurnKind.SIDE, "title")


def test_every_rule_has_a_condition_and_a_name() -> None:
    for rule in RULES:
        assert rule.reason
        assert rule.asks or rule.system or rule.when
