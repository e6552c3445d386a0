"""Which letters a pattern cannot match without, and that leaving rules out by them changes nothing."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.classify import RULES, RulePrefilter, build_classifier_input
from recorder.regex_prefilter import required_literals

GATE = RulePrefilter(RULES)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\b(generate|write)\b.{0,40}\btitles?\b", {"title"}),
        (r"\bcommit (message|title)s\b", {"commit "}),
        (r"(?i)HEARTBEAT", {"heartbeat"}),
        (r"标题|title", {"标题", "title"}),
        (r"summari[sz]e", {"summari"}),
        (r"(abc)+x?", {"abc"}),
        (r"(abc)*", None),
        (r"\bno\b", None),
        (r"\w+\s\d", None),
    ],
)
def test_what_every_match_holds(pattern: str, expected: set[str] | None) -> None:
    assert required_literals(re.compile(pattern)) == expected


def test_every_rule_but_those_without_patterns_can_be_left_out() -> None:
    plain = build_classifier_input([{"role": "user", "content": "How do I read a CSV file?"}], {})
    left = GATE.candidates(plain)
    assert len(left) < len(RULES) / 3


_WORDS = [
    "generate", "a", "title", "for", "this", "conversation", "only", "the", "in", "five", "words", "no", "quotes", "summarize", "our",
    "chat", "history", "so", "that", "another", "agent", "can", "continue", "suggest", "follow-up", "questions", "user", "next", "json",
    "review", "save", "memory", "HEARTBEAT_OK", "nothing", "reply", "标题", "对话", "总结", "Titel", "Gespräch", "nur", "commit message", "diff",
    "search query", "stand-alone", "rephrase", "context window", "must", "cron", "scheduled", "merge", "file", "snippet", "tags", "SUMMARY",
]  # fmt: skip


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from(_WORDS), max_size=25),
    st.lists(st.sampled_from(_WORDS), max_size=12),
    st.booleans(),
)
def test_the_gate_leaves_out_no_rule_that_holds(
    asked: list[str], system: list[str], answered_turn_id: bool
) -> None:
    messages = [{"role": "system", "content": " ".join(system)}, {"role": "user", "content": "hi"}]
    messages += [{"role": "assistant", "content": "hello"}] if answered_turn_id else []
    view = build_classifier_input([*messages, {"role": "user", "content": " ".join(asked)}], {})
    left = GATE.candidates(view)
    assert [rule for rule in RULES if rule.holds(view)] == [rule for rule in left if rule.holds(view)]
