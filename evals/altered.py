"""Clients that alter the histories they send: a second set of models, written after the rules were tuned on `evals.habits`.

Each function plays what is publicly known of some kinds of programs: histories cut by size, old tool results cleared, pictures taken
out, contexts put around a question and removed again, several people in one channel, summaries in every role, answers carried on.
Labels and lines are as in `evals.habits`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from evals.habits import _TOOLS, Labelled, Message, Tape, a, interleaved, s, u

STEPS = [
    ("The nightly export is empty since Tuesday, find out why.", "export.py", "def export(rows):\n    return [r for r in rows if r.day == today()]", "The filter compares a date with a datetime, so nothing is equal. I change it to r.day.date()."),
    ("still empty when I run it by hand", "run.sh", "python export.py --dry-run", "run.sh passes --dry-run: it never writes. I take the flag out."),
    ("no, leave the flag, read DRY_RUN from the environment instead", "run.sh", "#!/bin/sh\npython export.py ${DRY_RUN:+--dry-run}", "Done: run.sh reads DRY_RUN and passes the flag only when it is set."),
    ("works. write a test for the filter", "test_export.py", "def test_empty(): ...", "test_export.py now covers a datetime on the same day and on the day before."),
    ("good, that's it", "", "", "Glad it runs again."),
]  # fmt: skip


def _call(number: int, name: str) -> Message:
    given = json.dumps({"path": name, "reason": f"step {number} of the search for the empty export"})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "read_file", "arguments": given}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _agent(tape: Tape, name: str, alter: Callable[[list[Message], int], list[Message]]) -> Labelled:
    """Play the steps of an agent that reads a file in each, its history altered before each request."""
    history: list[Message] = []
    for number, (ask, file, text, answer) in enumerate(STEPS):
        history.append(u(ask))
        if file:
            call = _call(number, file)
            yield tape.line(alter(list(history), number), call, name, tools=_TOOLS, stream=True)
            history += [call, {"role": "tool", "tool_call_id": f"call_{number}", "content": text}]
            yield tape.line(
                alter(list(history), number), answer, name, "tool_result_continuation", tools=_TOOLS
            )
        else:
            yield tape.line(alter(list(history), number), answer, name, tools=_TOOLS, stream=True)
        history.append(a(answer))


def tool_results_cleared(tape: Tape) -> Labelled:
    """Old tool results are replaced by a note; the system prompt tells the time."""

    def alter(history: list[Message], number: int) -> list[Message]:
        old = [i for i, m in enumerate(history) if m["role"] == "tool"][:-1]
        for i in old:
            history[i] = {**history[i], "content": "[Old tool result content cleared]"}
        return [s(f"You are an agent. Today is 2026-11-21 10:{number:02d}."), *history]

    yield from _agent(tape, "cleared", alter)


def cut_by_size(tape: Tape) -> Labelled:
    """The oldest messages are dropped when the history grows; what remains begins anywhere, tool results included."""

    def alter(history: list[Message], number: int) -> list[Message]:
        kept = history if number < 2 else history[-7:]
        while kept and kept[0]["role"] == "tool":
            kept = kept[1:]
        return [s("You are an agent."), *kept]

    yield from _agent(tape, "cut", alter)


def tools_flattened(tape: Tape) -> Labelled:
    """Calls and results of earlier turns are kept as text in the assistant's message; only the newest are messages of their own."""

    def alter(history: list[Message], number: int) -> list[Message]:
        asked = [i for i, m in enumerate(history) if m["role"] == "user"][-1]
        flat: list[Message] = []
        pending = ""
        for m in history[:asked]:
            if m.get("tool_calls"):
                pending = f'<tool name="read_file">{m["tool_calls"][0]["function"]["arguments"]}</tool>\n'
            elif m["role"] == "tool":
                pending += f"<result>{m['content']}</result>\n"
            elif m["role"] == "assistant":
                flat.append(a(pending + m["content"]))
                pending = ""
            else:
                flat.append(m)
        return [*flat, *history[asked:]]

    yield from _agent(tape, "flat", alter)


def arguments_rewritten(tape: Tape) -> Labelled:
    """Arguments are indented and sorted, ids new, calls without text get an empty one, results become lists of parts."""

    def alter(history: list[Message], number: int) -> list[Message]:
        changed: list[Message] = []
        for m in history:
            if m.get("tool_calls"):
                given = json.loads(m["tool_calls"][0]["function"]["arguments"])
                text = json.dumps(given, indent=2, sort_keys=True)
                call = {
                    "id": f"x{len(changed)}",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": text},
                }
                changed.append({"role": "assistant", "content": "", "tool_calls": [call]})
            elif m["role"] == "tool":
                changed.append(
                    {
                        "role": "tool",
                        "tool_call_id": f"x{len(changed) - 1}",
                        "content": [{"type": "text", "text": m["content"] + "\n"}],
                    }
                )
            else:
                changed.append(m)
        return [s("You are an agent."), *changed]

    yield from _agent(tape, "args", alter)


def pictures(tape: Tape) -> Labelled:
    """A picture is sent once and stands as a placeholder afterwards; later it is dropped altogether."""
    first = {"role": "user", "content": [{"type": "text", "text": "What kind of beetle is on this leaf?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo"}}]}  # fmt: skip
    one = "A rose chafer: green with a metallic shine, on a rose leaf. It is harmless and protected."
    two = "About one and a half centimetres; the grubs are larger, up to four."
    later = {"role": "user", "content": [{"type": "text", "text": "What kind of beetle is on this leaf?"}, {"type": "text", "text": "[image omitted]"}]}  # fmt: skip
    yield tape.line([first], one, "beetle", stream=True)
    yield tape.line([later, a(one), u("how big do they get?")], two, "beetle", stream=True)
    yield tape.line([u("What kind of beetle is on this leaf?"), a(one), u("how big do they get?"), a(two), u("do they eat the roses?")], "Only the petals, and little.", "beetle", stream=True)  # fmt: skip


def context_in_front(tape: Tape) -> Labelled:
    """Notes that were found are put in front of the newest question, and are gone one turn later; nothing marks where they end but a label."""
    past: dict[str, list[Message]] = {}
    for name, i, ask, answer in interleaved("sourdough", "bash", "geburtstag"):
        history = past.setdefault(name, [])
        found = f"Use the notes below where they help.\n\nNotes:\n- [{i}] shop opens at nine\n- [{i + 1}] flour is in the cellar\n\nQuestion: {ask}"
        yield tape.line([*history, u(found)], answer, name, stream=True)
        history += [u(ask), a(answer)]


def context_behind(tape: Tape) -> Labelled:
    """An editor puts the open file and the selection behind what was typed, in blocks that change with each request."""
    past: dict[str, list[Message]] = {}
    for name, i, ask, answer in interleaved("bash", "hi-a"):
        history = past.setdefault(name, [s("You are a coding assistant.")])
        shown = f"{ask}\n\n<open_files>\n- rename_{i}.sh\n</open_files>\n<editor_context>\nline {i * 7}\n</editor_context>"
        yield tape.line([*history, u(shown)], answer, name, tools=_TOOLS, stream=True)
        history += [u(shown if i % 2 else ask), a(answer)]


def channel(tape: Tape) -> Labelled:
    """A bot in a channel: names in front of the words, several people before an answer, a window of the last messages."""
    heard = [
        [("maria", "@bot what's a good name for the release?"), "How about 'Heron'? Short, and free as a tag."],
        [("jens", "heron is taken by the mobile team"), ("maria", "@bot another one then"), "'Bittern': a relative, and nobody uses it."],
        [("jens", "love it"), ("tom", "@bot does it collide with anything on npm?"), "There is a package of that name, last touched nine years ago."],
        [("maria", "@bot ok, take it and draft the note"), "Release Bittern: faster exports, fewer surprises."],
        [("tom", "@bot shorter"), "Bittern: faster exports."],
    ]  # fmt: skip
    history: list[Message] = []
    for *said, answer in heard:
        history += [u(f"{name}: {text}") for name, text in said]
        yield tape.line(
            [s("You are a bot in #release. Be brief."), *history[-6:]], answer, "release", stream=False
        )
        history.append(a(str(answer)))


def merged(tape: Tape) -> Labelled:
    """Two messages typed in a row are sent as two and later as one; white space is trimmed."""
    yield tape.line([u("Plan my Sunday in Ghent.  "), u("it rains, and I have a toddler")], "Morning: the castle, it has a roof. Then waffles. Afternoon: the industry museum, which has a play corner.\n", "ghent")  # fmt: skip
    history = [u("Plan my Sunday in Ghent.\n\nit rains, and I have a toddler"), a("Morning: the castle, it has a roof. Then waffles. Afternoon: the industry museum, which has a play corner.")]  # fmt: skip
    yield tape.line(
        [*history, u("castle is closed"), u("something else?")],
        "Then the STAM: dry, and toddlers may walk on the map.",
        "ghent",
    )
    yield tape.line([*history, u("castle is closed\nsomething else?"), a("Then the STAM: dry, and toddlers may walk on the map."), u("perfect")], "Have fun!", "ghent")  # fmt: skip


def summary_in(role: str) -> Callable[[Tape], Labelled]:
    """A conversation is compacted; the summary stands in the system prompt, as the person's or as the assistant's words."""

    def play(tape: Tape) -> Labelled:
        wordings = [
            "You have been asked to compact this conversation. Write a summary with these sections:\n1. Request\n2. Findings\n3. Next steps\nIt takes the place of the conversation.",
            "Resume la conversación hasta ahora para que se pueda continuar sin los mensajes anteriores:\n- petición\n- hallazgos\n- siguiente paso",
        ]  # fmt: skip
        for run, wording in enumerate(wordings):
            system = "You are an agent." if run else "Du bist ein Agent."
            name = f"{role}{run}"
            history: list[Message] = []
            for number, (ask, _, _, answer) in enumerate(STEPS[:3]):
                ask = f"{ask} ({name})" if number == 0 else ask
                history.append(u(ask))
                yield tape.line([s(system), *history], f"{answer} ({name})", name, stream=True)
                history.append(a(f"{answer} ({name})"))
            told = f"Request: the export of {name} was empty.\nFindings: the filter compared a date with a datetime; run.sh passed --dry-run.\nNext steps: a test."
            yield tape.line([s(system), *history, u(wording)], told, name, "compaction_summary", stream=True)
            if role == "system":
                kept: list[Message] = [s(f"{system}\n\nSummary of what came before:\n{told}")]
            elif role == "user":
                kept = [
                    s(system),
                    u(
                        f"This conversation continues from an earlier one. The summary:\n\n{told}\n\nGo on from where it stopped."
                    ),
                ]
            else:
                kept = [s(system), u("What did we do so far?"), a(told)]
            for ask, _, _, answer in STEPS[3:]:
                kept.append(u(ask))
                yield tape.line(kept, f"{answer} ({name})", name, stream=True)
                kept.append(a(f"{answer} ({name})"))

    return play


def continued_answer(tape: Tape) -> Labelled:
    """An answer that was cut is carried on: the request ends with it, and both parts are one message afterwards."""
    ask = u("Tell me the story of the lighthouse keeper's cat in five sentences.")
    one = (
        "The cat came with the mail boat and stayed. In fog it sat on the gallery and listened. One night it"
    )
    two = " woke the keeper, long before the bell. A ship had lost its way. Nobody ever sent the cat away again."
    yield tape.line([ask], one, "cat", stream=True, max_tokens=40)
    yield tape.line([ask, a(one)], two, "cat", stream=True, ambiguous="the client asks to go on")
    yield tape.line([ask, a(one + two), u("lovely. now as a haiku")], "Fog on the gallery / the cat hears what no bell says / a ship turns away", "cat")  # fmt: skip


def edited_and_asked_again(tape: Tape) -> Labelled:
    """A tree of messages: an edited first message, an edited later one, two answers to one question, the older one carried on."""
    first = u("Suggest a name for a sailing boat that is small, old and red.")
    yield tape.line([first], "Rust Bucket, said with love.", "boat", stream=True)
    yield tape.line([first], "Poppy: small, red and cheerful.", "boat", stream=True, seed=2)
    chosen = [first, a("Rust Bucket, said with love.")]
    yield tape.line([*chosen, u("something prouder")], "Scarlet Admiral.", "boat", stream=True)
    yield tape.line(
        [*chosen, u("something prouder, but still funny")], "Rear Admiral Ketchup.", "boat", stream=True
    )
    yield tape.line([*chosen, u("something prouder, but still funny"), a("Rear Admiral Ketchup."), u("ha! paint or vinyl for the letters?")], "Vinyl: it survives the sanding.", "boat", stream=True)  # fmt: skip
    yield tape.line([u("Suggest a name for a sailing boat that is small, old and red. It was my grandfather's.")], "Grandpa's Tomato.", "boat", stream=True)  # fmt: skip


def sent_by_a_tool(tape: Tape) -> Labelled:
    """An agent sends helpers: their task is what it told a tool, in front of it the very prompt of their parent."""
    system = s("You are an agent with helpers. Use the task tool for searches.")
    task = "Search the repository for every place where a date is compared with a datetime and list file and line."
    call = {"role": "assistant", "content": "I send a helper.", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "task", "arguments": json.dumps({"description": "find comparisons", "prompt": task})}}]}  # fmt: skip
    found = "export.py:14 and report.py:88 compare a date with a datetime."
    history: list[Message] = [system, u("Where else could the bug of the empty export be?")]
    yield tape.line(history, call, "parent", tools=_TOOLS, stream=True)
    helper: list[Message] = [system, u(task)]
    look = _call(9, "export.py")
    yield tape.line(helper, look, "helper", "subagent_run", tools=_TOOLS, stream=True)
    helper += [look, {"role": "tool", "tool_call_id": "call_9", "content": "14: if r.day == today():"}]
    yield tape.line(helper, found, "helper", "subagent_run", tools=_TOOLS, stream=True)
    history += [
        call,
        {"role": "tool", "tool_call_id": "t1", "content": f"<task_result>\n{found}\n</task_result>"},
    ]
    yield tape.line(
        history, "In report.py as well, line 88.", "parent", "tool_result_continuation", tools=_TOOLS
    )
    history += [a("In report.py as well, line 88."), u("fix that one too")]
    yield tape.line(history, "Fixed.", "parent", tools=_TOOLS, stream=True)


def parallel_calls(tape: Tape) -> Labelled:
    """Three calls at once whose results come back in another order, one of them an error, then more calls before any answer."""
    ids = ["a", "b", "c"]
    calls = [
        {
            "id": i,
            "type": "function",
            "function": {"name": "read_file", "arguments": json.dumps({"path": f"{i}.py"})},
        }
        for i in ids
    ]
    asked = [u("Which of a.py, b.py and c.py import os?")]
    reply = {"role": "assistant", "content": "", "tool_calls": calls}
    yield tape.line(asked, reply, "calls", tools=_TOOLS, stream=True)
    results = [
        {"role": "tool", "tool_call_id": i, "content": "import os" if i != "b" else "Error: no such file"}
        for i in reversed(ids)
    ]
    again = {"role": "assistant", "content": None, "tool_calls": [{**calls[1], "id": "d", "function": {"name": "run_command", "arguments": '{"command": "ls"}'}}]}  # fmt: skip
    yield tape.line([*asked, reply, *results], again, "calls", "tool_result_continuation", tools=_TOOLS)
    more = {"role": "tool", "tool_call_id": "d", "content": "a.py\nc.py"}
    yield tape.line([*asked, reply, *results, again, more], "a.py and c.py; there is no b.py.", "calls", "tool_result_continuation", tools=_TOOLS)  # fmt: skip
    yield tape.line([*asked, reply, *results, again, more, a("a.py and c.py; there is no b.py."), u("you forgot d.py")], "d.py imports sys only.", "calls", tools=_TOOLS)  # fmt: skip


def reasoning_dropped(tape: Tape) -> Labelled:
    """Thinking stands in the answer, in a field beside it, or nowhere, as the client likes; the next history has none of it."""
    past: dict[str, list[Message]] = {}
    for name, i, ask, answer in interleaved("umzug", "sourdough"):
        history = past.setdefault(name, [])
        history.append(u(ask))
        shapes: list[Any] = [
            f"<think>\nThey ask about {name}.\n</think>\n\n{answer}",
            {"role": "assistant", "content": answer, "reasoning_content": f"They ask about {name}."},
            {"role": "assistant", "content": f"\n{answer}\n", "reasoning": "hm"},
        ]
        yield tape.line(history, shapes[i % 3], name, stream=True)
        kept = [
            a(answer),
            a(answer, reasoning_content=""),
            {"role": "assistant", "content": [{"type": "text", "text": answer.strip()}]},
        ]
        history.append(kept[i % 3])


def outputs_as_system(tape: Tape) -> Labelled:
    """An agent in a terminal: code stands in its answers, and what came of it is told in the system's role."""
    history: list[Message] = [s("You are an agent. Write code in fenced blocks; it is run.")]
    for ask, code, out, answer in (
        ("How many rows has export.csv?", "```sh\nwc -l export.csv\n```", "Ran command: wc -l export.csv\n\n0 export.csv", "None: it is empty."),
        ("and yesterday's?", "```sh\nwc -l export-1.csv\n```", "Ran command: wc -l export-1.csv\n\n812 export-1.csv", "812."),
        ("so it broke last night", "Then I look at the log.\n```sh\ntail export.log\n```", "Ran command: tail export.log\n\nTypeError", "A TypeError in the filter."),
    ):  # fmt: skip
        history.append(u(ask))
        yield tape.line(history, code, "shell", stream=True)
        history += [a(code), s(out)]
        yield tape.line(history, answer, "shell", "tool_result_continuation", stream=True)
        history.append(a(answer))


ALTERED: dict[str, Callable[[Tape], Labelled]] = {
    "tool-results-cleared": tool_results_cleared,
    "cut-by-size": cut_by_size,
    "tools-flattened": tools_flattened,
    "arguments-rewritten": arguments_rewritten,
    "pictures": pictures,
    "context-in-front": context_in_front,
    "context-behind": context_behind,
    "channel": channel,
    "merged": merged,
    "summary-in-system": summary_in("system"),
    "summary-in-user": summary_in("user"),
    "summary-in-assistant": summary_in("assistant"),
    "continued-answer": continued_answer,
    "edited": edited_and_asked_again,
    "sent-by-a-tool": sent_by_a_tool,
    "parallel-calls": parallel_calls,
    "reasoning-dropped": reasoning_dropped,
    "outputs-as-system": outputs_as_system,
}
