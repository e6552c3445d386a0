"""Main or side, by what is asked."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from store.values import TurnKind
from wire.classify import (
    GROUP_OF,
    MEANINGS,
    RELATIONS,
    WEIGHTS,
    classify,
    classify_request,
    find_codes,
    reconsider,
    related,
    weigh,
)
from wire.evidence import _WORDS, FORMS, LANGUAGES, MACHINES, TOPICS, find_words

QUOTED = "<chat_history>\nUSER: Where is Oslo?\nASSISTANT: In Norway.\n</chat_history>"


#: The request alone is not enough: what follows it, or a template seen again, decides (`reconsider`). Strict, so that progress shows.
UNDECIDED = pytest.mark.xfail(reason="the request alone does not show its kind", strict=True)


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
        pytest.param("slug", "Generate a short filename slug, lowercase, hyphen-separated.", {}, marks=UNDECIDED),
        ("tags", f"Generate three tags that categorize the conversation.\n{QUOTED}", {}),
        pytest.param("emoji", "Pick one emoji that fits. Message: ```hurray```", {}, marks=UNDECIDED),
        ("commit_message", "Write a commit message for this diff. Return only the message.\ndiff --git a/x b/x\n+x", {}),
        ("follow_ups", f"Suggest three follow-up questions the user could ask next.\n{QUOTED}", {}),
        ("follow_ups", f"Generate a search query for the last question.\n{QUOTED}", {}),
        ("search_queries", "And in Rome?", {"system": "Given a history, rephrase it as a standalone question.", "history": 1}),
        ("autocomplete", "You are an autocompletion system. Continue: How do I re", {}),
        ("summary", "Summarize the following conversation so that it can replace it:\nuser: a\nassistant: b", {}),
        ("summary", "<conversation>…</conversation>", {"system": "You are a context summarization assistant."}),
        ("summary", "Condense our work up to here for a new task: findings, files, pending steps. The old messages will be gone.", {"history": 3}),
        ("memory", "Pre-compaction memory flush: store what matters.", {"history": 3}),
        ("memory", "Go on.", {"system": "You are the memory extraction agent.", "history": 1}),
        ("heartbeat", "HEARTBEAT: look at your list. If nothing needs attention, reply HEARTBEAT_OK.", {"history": 2}),
        ("heartbeat", "Check the inbox. If nothing is new, reply only NO_REPLY.", {"history": 1}),
        ("cron", "[cron:daily] collect the news", {}),
        ("subagent", "[Subagent Context] You are a subagent. Find the price.", {}),
        ("probe", "Where is Oslo?", {"max_tokens": 1}),
        ("probe", "ping", {"max_tokens": 5}),
        ("speaker_selection", "Read it. Then select the next speaker from [a, b].", {}),
        ("structured_one_off", "Write a poem", {"system": "Check if the user asks for something off topic.", "response_format": {"type": "json_schema"}}),
        ("judge", "…", {"system": "You are an impartial judge."}),
        ("structured_one_off", "Rate this review: nice.", {"response_format": {"type": "json_schema"}}),
        ("title", f"Erstelle einen Titel für das folgende Gespräch, nur den Titel.\n{QUOTED}", {}),
        ("title", "hi there", {"system": "你需要将用户的会话总结为10个字以内的标题，不要使用标点"}),
        ("title", "Create a succinct 3-7 word title for this thread. No punctuation, no quotes.", {"history": 2}),
        ("title", "How do I bake?", {"system": "Provide a description of this session in 4 words or less. Reply only with it."}),
        ("tags", "Schlage drei Fragen vor, die der Nutzer als Nächstes stellt. Nur JSON.", {}),
        pytest.param("search_queries", "Rewrite the follow-up message so that it stands alone.\nA: b\nC: and then?", {}, marks=UNDECIDED),
        ("autocomplete", "PREFIX:\nx = \nSUFFIX:\n", {}),
        ("autocomplete", "Merge the snippet into the file and return only the file.\n<file>x</file>", {}),
        ("commit_message", "diff --git a/x b/x\n+y", {"system": "You write git commit messages."}),
        ("summary", "Write down everything a fresh agent needs to carry on.", {"history": 3}),
        ("summary", "请将以上对话压缩成摘要，这份摘要将替代之前的历史", {"history": 3}),
        ("memory", "Review the conversation above and save what is worth remembering.", {"history": 3}),
        pytest.param("memory", "审查上面的对话并考虑保存到记忆中", {"history": 3}, marks=UNDECIDED),
        ("machine_message", "[SYSTEM: the session is reset soon. Tidy up.]", {"history": 3}),
        ("heartbeat", '{"type": "heartbeat", "reason": "timer"}', {"history": 1}),
        ("speaker_selection", "…", {"system": "Pick who speaks next. Return only the name."}),
        ("structured_one_off", "Tasks: none", {"system": "Call the report tool to report.", "tools": [{"function": {"name": "report"}}]}),
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
        ("What is the capital of France?", {"response_format": {"type": "json_schema"}}),
        (
            "Name three rivers of Norway with their lengths.",
            {"response_format": {"type": "json_object"}, "temperature": 0},
        ),
        ("Give me a recipe for pancakes as JSON, please.", {"response_format": {"type": "json_object"}}),
        (
            "I have eggs and flour. What can I cook?",
            {"system": "You are a cook. Answer in JSON.", "response_format": {"type": "json_schema"}},
        ),
        ("yes", {"history": 1, "max_tokens": 1}),
        ("Where is Oslo?", {"max_tokens": 5}),
        ("Write a commit message for my last change", {"history": 2}),
        ("How do heartbeats work in Raft?", {}),
        ("Write a title for my blog post about bees, max 6 words, only the title", {}),
        pytest.param("Create a chat app with a title bar. Only HTML.", {}, marks=UNDECIDED),
        pytest.param("Pick the next speaker for our conference", {}, marks=UNDECIDED),
        ("Look back at the conversation and tell me what I got wrong", {"history": 3}),
        ("Can you summarize what we discussed so far?", {"history": 3}),
        ("[system] is broken, what now?", {"history": 1}),
        ("And Rome?", {"system": "Summary of the conversation so far: they spoke of Oslo.", "history": 1}),
        ('{"name": "Ann", "type": "person"}', {"history": 1}),
        ("Compress this image in Python", {}),
    ],
)
def test_what_a_person_asks_is_main(text: str, more: dict[str, Any]) -> None:
    assert ask(text, **more)[0] is TurnKind.MAIN


def test_a_marker_beside_the_persons_words_does_not_make_them_housekeeping() -> None:
    assert ask("[App heartbeat poll]\nWrite to my landlord.", history=1)[0] is TurnKind.MAIN


REACT = (
    "Answer as well as you can.\n\nThought: I now can give a great answer\nFinal Answer: the answer itself"
)


def test_an_agents_step_in_text_is_main_although_it_ends_with_an_empty_field() -> None:
    task = "Current Task: Compare two phones.\n\nExpected Output: a table\n\nThought:"
    assert "agent_form" in find_codes(
        [{"role": "system", "content": REACT}, {"role": "user", "content": task}], {}
    )
    assert ask(task, system=REACT)[0] is TurnKind.MAIN


def test_a_judgement_under_a_schema_is_side_whatever_the_person_says() -> None:
    system = "Check if the user is asking for homework help."
    assert (
        ask("What is the capital of France?", system=system, response_format={"type": "json_schema"})[0]
        is TurnKind.SIDE
    )


def test_tools_and_streaming_tell_nothing() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert ask("hi", tools=tools, stream=True) == ask("hi", stream=False)
    title = f"Generate a short title for this chat.\n{QUOTED}"
    assert ask(title, tools=tools, stream=True) == (TurnKind.SIDE, "title")


def test_a_system_message_behind_the_last_answer_is_the_clients() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "system", "content": "Go on."},
    ]
    assert classify(messages, {}).reason == "closing_instruction"
    assert classify([*messages, {"role": "user", "content": "yes"}], {}).kind is TurnKind.MAIN


def test_another_speakers_name_is_another_agents() -> None:
    user_text = {"role": "user", "content": "Plan a pond.", "name": "teacher"}
    plan = {"role": "user", "content": "Dig.", "name": "planner"}
    assert classify([user_text, plan], {}).reason == "agent_to_agent"
    assert classify([user_text, {**plan, "name": "teacher"}], {}).kind is TurnKind.MAIN
    assert classify([user_text, {"role": "user", "content": "Dig."}], {}).kind is TurnKind.MAIN


def test_what_the_client_says_wins() -> None:
    title = [{"role": "user", "content": f"Generate a short title for this chat.\n{QUOTED}"}]
    assert classify_request(title, {}, TurnKind.MAIN).kind is TurnKind.MAIN
    assert classify_request([{"role": "user", "content": "hi"}], {}, TurnKind.SIDE).reason == "client_header"


def test_every_pattern_finds_its_example_and_every_code_has_a_meaning() -> None:
    patterns = (*TOPICS, *MACHINES, *FORMS)
    assert len(patterns) <= 40
    for pattern in patterns:
        assert pattern.code in find_words(pattern.example), pattern.code
    assert WEIGHTS.keys() == set(GROUP_OF.values())
    assert len(WEIGHTS) <= 20
    assert not [code for code in (*GROUP_OF, *RELATIONS) if not MEANINGS.get(code)]


def test_the_evidence_adds_up_to_the_kind() -> None:
    title = [{"role": "user", "content": f"Generate a short title for this chat.\n{QUOTED}"}]
    found = classify(title, {})
    assert found.score == pytest.approx(sum(WEIGHTS[GROUP_OF[e.code]] for e in found.evidence))
    assert found.score > 0
    assert {"about_title", "dialogue_inside"} <= {e.code for e in found.evidence}
    weights = [abs(e.weight) for e in found.evidence]
    assert weights == sorted(weights, reverse=True)
    assert classify([{"role": "user", "content": "hi"}], {}).score < 0


def test_a_phrase_deep_in_a_long_system_prompt_is_no_evidence() -> None:
    manual = (
        "# Manual\n"
        + "Work with care.\n" * 600
        + "Memory-consolidation tasks and titles are made by sub-agents.\n" * 40
    )
    tools = [{"type": "function", "function": {"name": str(i)}} for i in range(9)]
    with_manual = [
        {"role": "system", "content": manual},
        *_BASIL,
        {"role": "user", "content": "And in winter?"},
    ]
    found = classify(with_manual, {"tools": tools}, ["extends_main"])
    assert found.kind is TurnKind.MAIN
    assert not [e.code for e in found.evidence if e.code.startswith("role_")]


def test_what_follows_can_correct_a_kind_but_not_the_clients_word() -> None:
    first = weigh(["bias", "forced"])
    assert first.kind is TurnKind.SIDE
    assert reconsider(first, "tools_followed").kind is TurnKind.MAIN
    for relation, kind in (("continued", TurnKind.MAIN), ("beside_main", TurnKind.SIDE)):
        decided = related(first, kind, relation)
        assert (decided.kind, decided.reason) == (kind, relation)
        assert (decided.score > 0) is (kind is TurnKind.SIDE)
        assert reconsider(decided, "extends_side", "tools_followed") == decided
    named = classify_request([{"role": "user", "content": "hi"}], {}, TurnKind.SIDE)
    assert reconsider(named, "continued") == named


def test_a_reply_format_counts_beside_other_evidence_of_a_program() -> None:
    asked, schema = (
        [{"role": "user", "content": "Ann is 30 years old."}],
        {"response_format": {"type": "json_schema"}},
    )
    assert classify(asked, schema).kind is TurnKind.MAIN
    assert (
        classify([{"role": "user", "content": "Label: ann.\nText: a\nOutput:"}], schema).kind is TurnKind.SIDE
    )


def test_the_record_adds_to_the_evidence() -> None:
    asked = [{"role": "user", "content": "Label this: the hall is cold.\nText: a\nOutput:"}]
    alone = classify(asked, {})
    assert classify(asked, {}, ["extends_side"]).score == pytest.approx(alone.score + WEIGHTS["extends_side"])


# ------------------------------------------------------------- side requests and people, as data

_BASIL = [
    {"role": "user", "content": "How do I keep basil alive?"},
    {"role": "assistant", "content": "Water it from below and give it light."},
]


def lines_of(name: str, key: str) -> list[Any]:
    lines = (Path(__file__).parent / "data" / name).read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [
        pytest.param(line, id=line[key][:40], marks=[UNDECIDED] if line.get("undecided") else [])
        for line in found
    ]


@pytest.mark.parametrize("line", lines_of("side_requests.jsonl", "reason"))
def test_side_requests_of_many_programs_are_side(line: dict[str, Any]) -> None:
    system = [{"role": "system", "content": line["system"]}] if line["system"] else []
    history = _BASIL if line["later"] else []
    messages = [*system, *history, {"role": "user", "content": line["user"]}]
    found = classify(messages, {})
    assert found.kind is TurnKind.SIDE
    assert found.reason == line["reason"]


@pytest.mark.parametrize("line", lines_of("people.jsonl", "text"))
def test_people_who_ask_for_what_looks_like_a_chore_are_main(line: dict[str, Any]) -> None:
    history = _BASIL if line["later"] else []
    for system in ([], [{"role": "system", "content": "You are a helpful assistant."}]):
        messages = [*system, *history, {"role": "user", "content": line["text"]}]
        assert classify(messages, {}).kind is TurnKind.MAIN


def test_a_summary_that_was_made_is_not_an_order_to_make_one() -> None:
    told = "This conversation is being continued from an earlier one. The summary:\n1. a hall\n2. a booking\n3. a key\nContinue with the next task."
    messages = [{"role": "user", "content": told}, {"role": "user", "content": "now the invoice"}]
    assert classify(messages, {}).kind is TurnKind.MAIN
    assert classify([*_BASIL, *messages], {}).kind is TurnKind.MAIN


def test_an_output_in_the_systems_role_is_no_closing_instruction() -> None:
    ran = {"role": "system", "content": "Ran command: ls\n\na.py"}
    code = {"role": "assistant", "content": "```sh\nls\n```"}
    assert classify([*_BASIL, ran], {}).reason == "closing_instruction"
    assert classify([_BASIL[0], code, ran], {}).kind is TurnKind.MAIN
    assert classify([*_BASIL, ran, _BASIL[1], ran], {}).kind is TurnKind.MAIN


SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'


@pytest.mark.parametrize(
    "order",
    [
        f"Output should be in JSON format and conform to the following schema:\n\n```\n{SCHEMA}\n```",
        f"Here's a JSON schema to follow:\n{SCHEMA}",
        f"Format the output as JSON that matches this schema.\n\n{SCHEMA}",
    ],
)
def test_an_order_to_follow_a_written_schema_is_a_side_turn_once(order: str) -> None:
    assert ask(f"Extract the city: I live in Oslo\n{order}") == (TurnKind.SIDE, "structured_one_off")
    assert ask(f"I live in Oslo\n{order}", history=1)[0] is TurnKind.MAIN


@pytest.mark.parametrize(
    "text",
    [
        f"Why does my validator reject this schema?\n{SCHEMA}",
        f"Please add a zip code to this JSON schema\n{SCHEMA}",
        f"What does this mean?\n{SCHEMA}",
    ],
)
def test_a_question_about_a_schema_is_a_persons(text: str) -> None:
    assert ask(text)[0] is TurnKind.MAIN


def test_every_file_of_words_is_loaded_and_every_code_is_explained_and_has_words() -> None:
    names = {entry.name.removesuffix(".toml") for entry in (files("wire") / "words").iterdir()}
    assert names == {*LANGUAGES, "patterns"}
    patterns = {pattern.code: pattern for pattern in (*TOPICS, *MACHINES, *FORMS)}
    assert {code for words in _WORDS for code in words} == set(patterns)
    assert all(pattern.branches for pattern in patterns.values())
