"""Which letters a pattern cannot match without, and that leaving patterns out by them changes nothing."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from wire.evidence import FORMS, MACHINES, READ_CHARS, TOPICS, find_words
from wire.framework_text import EVIDENCE
from wire.regex_prefilter import PatternSet, required_literals

PATTERNS = (*TOPICS, *MACHINES, *FORMS)


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


def test_every_branch_but_a_few_can_be_left_out_by_its_literals() -> None:
    branches = [branch for p in PATTERNS for branch in p.branches]
    assert sum(required_literals(branch) is None for branch in branches) < len(branches) / 4


_WORDS = [
    "generate", "a", "title", "for", "this", "conversation", "only", "the", "in", "five", "words", "no", "quotes", "summarize", "our",
    "chat", "history", "so", "that", "another", "agent", "can", "continue", "suggest", "follow-up", "questions", "user", "next", "json",
    "review", "save", "memory", "HEARTBEAT_OK", "nothing", "reply", "标题", "对话", "总结", "Titel", "Gespräch", "nur", "commit message", "diff",
    "search query", "stand-alone", "rephrase", "context window", "must", "cron", "scheduled", "merge", "file", "snippet", "tags", "SUMMARY",
]  # fmt: skip


@settings(max_examples=examples(400))
@given(st.lists(st.sampled_from(_WORDS), max_size=25))
def test_the_literals_leave_out_no_pattern_that_matches(asked: list[str]) -> None:
    text = " ".join(asked)
    for pattern in PATTERNS:
        matches = any(branch.search(text, 0, READ_CHARS) for branch in pattern.branches)
        assert (pattern.code in find_words(text)) == matches, pattern.code


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from([e.example for e in EVIDENCE]), max_size=3), st.booleans())
def test_the_literals_leave_out_no_form_of_a_framework(examples: list[str], is_upper: bool) -> None:
    text = "\n".join(examples)
    text = text.upper() if is_upper else text
    found = PatternSet((e.pattern, e) for e in EVIDENCE).candidates(text)
    assert [e for e in found if e.pattern.search(text)] == [e for e in EVIDENCE if e.pattern.search(text)]
