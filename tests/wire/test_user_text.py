"""The person's words, apart from what their client put around them."""

from __future__ import annotations

from typing import Any

import pytest

from wire.user_text import (
    collapse_whitespace,
    is_machine_event,
    next_state_text,
    strip_client_context,
    strip_reasoning,
)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ("just this", "just this"),
        ("<system-reminder>\nBe nice.\n</system-reminder>\n\nFix the bug", "Fix the bug"),
        ("<environment_context>\n  <cwd>/x</cwd>\n</environment_context>", ""),
        ("[Fri 2026-11-20 21:29 UTC] shorter please", "shorter please"),
        ("<<<BEGIN_APP_CONTEXT>>>\nnoise\n<<<END_APP_CONTEXT>>>\nhello", "hello"),
        ("[Some heartbeat poll]\nAnd now?", "And now?"),
        ("Hi\n\nRuntime: a=b | c=d | e=f g", "Hi"),
        ("what does <b>bold</b> mean?", "what does <b>bold</b> mean?"),
        ("compare <div>x</div> with <p>y</p>", "compare <div>x</div> with <p>y</p>"),
        ("list [1, 2, 3] sorted", "list [1, 2, 3] sorted"),
        ("x = a | b = c", "x = a | b = c"),
        ("How much flour?\n\n[Runtime]\nTime: 2026-11-20 15:00\nChannel: cli", "How much flour?"),
        ('{"type": "user_message", "message": "hi there", "time": "3 PM"}', "hi there"),
        ('{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}'),
        (
            "### Task:\nAnswer with <source> tags.\n<context>\n<source id=1>a</source>\n</context>\n\nWhere is Oslo?",
            "Where is Oslo?",
        ),
        ("See <context>this</context> and say why", "See \n and say why"),
        ("Observation:\n12 C\nNew task:\nAnd in Rome?", "And in Rome?"),
        (
            "[attempt_completion] Result:\nThe person said:\n<feedback>\nNo, the other file.\n</feedback>",
            "No, the other file.",
        ),
        ("Result: I like it", "Result: I like it"),
    ],
)
def test_machine_context_is_taken_off_and_nothing_else(sent: str, words: str) -> None:
    assert strip_client_context(sent) == words


def test_thinking_is_not_spoken() -> None:
    assert strip_reasoning("<think>hm</think>\n\nParis") == "Paris"
    assert strip_reasoning("hm, the template opened it</think>Paris") == "Paris"
    assert strip_reasoning("Paris\n<think>and then the tokens ran out") == "Paris"
    assert strip_reasoning(" plain ") == "plain"


def test_the_newest_words_of_the_person_are_what_followed() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a heartbeat"},
        {"role": "assistant", "content": "OK"},
        {"role": "user", "content": "<system-reminder>x</system-reminder>"},
        {"role": "user", "content": [{"type": "text", "text": "No, shorter."}]},
    ]
    assert next_state_text(messages) == ("user", "No, shorter.")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("Now proceed and carry out this plan.", "No, shorter."),
        ("Please continue.", "No, shorter."),
        ("Continue with the second part.", "Continue with the second part."),
    ],
)
def test_an_order_to_go_on_behind_a_plan_does_not_hide_the_words_before_it(order: str, said: str) -> None:
    messages = [
        {"role": "user", "content": "No, shorter."},
        {"role": "assistant", "content": "The plan: …"},
        {"role": "user", "content": order},
    ]
    assert next_state_text(messages) == ("user", said)
    assert next_state_text(messages[2:]) == ("user", order)


REMINDER = "You MUST use this *file listing* format:\n\npath/to/file\n```\n// the entire content ...\n```\n\nEvery *file listing* MUST use this format, without exception."


@pytest.mark.parametrize(
    ("text", "system", "words"),
    [
        (f"No, answer shorter.\n\n{REMINDER}", f"Act as an expert.\n\n{REMINDER}", "No, answer shorter."),
        (f"No:\n\nanswer shorter.\n\n{REMINDER}\n\n", f"Act.\n{REMINDER}\n\n", "No:\n\nanswer shorter."),
        ("Why so?\n\nBe brief.", "Be brief.", "Why so?\n\nBe brief."),
        ("Be brief.", "You are an assistant. Be brief.", "Be brief."),
    ],
)
def test_the_system_prompt_behind_a_persons_words_is_not_theirs(text: str, system: str, words: str) -> None:
    assert next_state_text([{"role": "user", "content": text}], system=system) == ("user", words)


def test_a_message_of_the_system_prompt_alone_is_a_programs() -> None:
    found = next_state_text([{"role": "user", "content": REMINDER}], system=f"Act.\n\n{REMINDER}")
    assert found == ("framework", REMINDER)


def test_tool_output_counts_where_nobody_spoke() -> None:
    assert next_state_text([{"role": "tool", "content": "Error: no such file"}]) == (
        "tool",
        "Error: no such file",
    )
    both: list[dict[str, str]] = [
        {"role": "tool", "content": "12 C"},
        {"role": "user", "content": "too cold"},
    ]
    assert next_state_text(both) == ("user", "too cold")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "tool", "content": "12 C"}], ("tool", "12 C")),
        ([{"role": "user", "content": "Observation:\n12 C"}], ("tool", "Observation:\n12 C")),
        ([{"role": "user", "content": "[read_file for 'x'] Result:\nimport os"}], ("tool", "[read_file for 'x'] Result:\nimport os")),
        ([{"role": "tool", "content": "12 C"}, {"role": "user", "content": "<system-reminder>x</system-reminder>"}], ("tool", "12 C")),
        ([{"role": "tool", "content": "12 C"}, {"role": "user", "content": "too cold"}], ("user", "too cold")),
        ([{"role": "tool", "content": "12 C"}, {"role": "assistant", "content": "as I said"}], ("tool", "12 C")),
        ([{"role": "user", "content": "the plan", "name": "planner"}, {"role": "user", "content": "no", "name": "ann"}], ("user", "no")),
        ([{"role": "assistant", "content": "only me"}], None),
    ],
)  # fmt: skip
def test_who_spoke_is_told_with_what_was_said(
    messages: list[dict[str, Any]], said: tuple[str, str] | None
) -> None:
    assert next_state_text(messages) == said


def test_an_envelope_without_words_is_a_machines() -> None:
    assert is_machine_event('{"type": "heartbeat", "reason": "timer", "time": "4 PM"}')
    assert not is_machine_event('{"type": "user_message", "message": "hi"}')
    assert not is_machine_event('{"type": "recipe"}')
    assert not is_machine_event("{not json}")


def test_what_the_system_tells_behind_an_answer_is_an_output_where_nobody_speaks() -> None:
    ran = {"role": "system", "content": "Ran command: ls\n\na.py"}
    assert next_state_text([ran]) == ("tool", "Ran command: ls\n\na.py")
    assert next_state_text([ran, {"role": "user", "content": "and b.py?"}]) == ("user", "and b.py?")
    assert next_state_text([]) is None


def test_white_space_collapses_to_single_spaces() -> None:
    assert collapse_whitespace(" a\n\n b\t") == "a b"
