"""The upgrade: what an earlier version left in `unwritten.jsonl` is recorded once, and nothing of the file is thrown away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from recorder.old_journal import OLD_JOURNAL, convert_line, convert_old_journal
from recorder.worker import RecorderWorker
from store.journal import JournalWriter, read_entries, segments
from store.lifecycle import DropReason
from store.record import Record
from store.values import LogprobMode, TurnKind
from wire.captured_exchange import dump_exchange, load_exchange
from wire.reply_assembly import token_drop_reason


def line(turn_id: str, text: str = "hello", **more: Any) -> bytes:
    """A line as version 1.x wrote it."""
    value = {
        "turn_id": turn_id,
        "created_at": 10.0,
        "finished_at": 11.0,
        "scope": "key:ann",
        "client": "openai",
        "policy": "tiny",
        "adapter_version": 3,
        "status_code": 200,
        "streamed": True,
        "body_key": "b" * 16,
        "temperature": 0.5,
        "size": 321,
        "wishes": {
            "kind": "main", "session": "s1", "is_session_done": False, "is_opted_out": False, "user": "ann",
        },
        "kind": {"kind": "main", "reason": "conversation"},
        "body": orjson.dumps({"model": "tiny", "messages": [{"role": "user", "content": text}]}).decode(),
        "reply": {
            "completion_id": "c-1",
            "completions": [
                {
                    "text": "Oslo.", "reasoning": "", "tool_calls": [], "finish_reason": "stop", "token_ids": [1, 2],
                    "sampling_logprobs": [-0.5, -0.25], "problem": "",
                }
            ],
            "prompt_token_ids": [7, 8],
            "usage": {"completion_tokens": 2},
            "is_finished": True,
            "problem": "",
            "error": None,
        },
        "fault": None,
        "logprob_mode": "raw_logprobs",
        **more,
    }  # fmt: skip
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def test_a_line_of_the_earlier_version_becomes_an_entry_of_the_same_content() -> None:
    found = load_exchange(convert_line(line("turn_a", "Where?")))
    assert (found.turn_id, found.key_name, found.adapter_version, found.temperature) == (
        "turn_a",
        "key:ann",
        3,
        0.5,
    )
    assert found.chat.messages[0]["content"] == "Where?"
    assert (found.options.session, found.options.kind, found.options.user) == ("s1", TurnKind.MAIN, "ann")
    assert (found.reply.completion_id, found.reply.prompt_token_ids) == ("c-1", (7, 8))
    assert (found.reply.completions[0].text, found.reply.completions[0].token_ids) == ("Oslo.", (1, 2))
    assert (found.fault, found.logprob_mode) == (None, LogprobMode("raw_logprobs"))
    left = load_exchange(convert_line(line("turn_b", fault=["unfinished", "the client left"])))
    assert left.fault == (DropReason.UNFINISHED, "the client left")


async def test_lines_are_recorded_once_in_their_order_and_unreadable_ones_are_kept(
    tmp_path: Path, record_url: str
) -> None:
    old, folder = tmp_path / OLD_JOURNAL, tmp_path / "journal"
    content = (
        line("turn_a", "one") + b'{"turn_id":"turn_torn","crea\n' + b"\n" + line("turn_b", "two") + b"torn"
    )
    old.write_bytes(content)
    done = await convert_old_journal(tmp_path, folder)
    assert done is not None
    assert (done.converted, done.unreadable) == (2, 2)
    assert not old.exists()
    assert (tmp_path / f"{OLD_JOURNAL}.done").read_bytes() == content

    # A turn that the earlier version recorded before it died, and a second file: nothing is doubled or replaced.
    old.write_bytes(line("turn_a", "one"))
    for _ in range(2):
        worker = RecorderWorker(folder, lambda: Record.open(record_url))
        await worker.stop(20.0)
        await convert_old_journal(tmp_path, folder)
    assert (tmp_path / f"{OLD_JOURNAL}.done.1").read_bytes() == line("turn_a", "one")
    assert worker.rejected == 0
    record = await Record.open(record_url)
    try:
        assert [row["messages"][0]["content"] for row in await record.trajectories()] == ["one", "two"]
    finally:
        await record.close()


async def test_without_an_old_journal_nothing_happens(tmp_path: Path) -> None:
    assert await convert_old_journal(tmp_path, tmp_path / "journal") is None
    assert not (tmp_path / "journal").exists()


async def test_a_journal_that_cannot_be_written_leaves_the_file_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, folder = tmp_path / OLD_JOURNAL, tmp_path / "journal"
    old.write_bytes(line("turn_a") + line("turn_b"))
    write = JournalWriter._write
    written = 0

    def fail_second(self: JournalWriter, data: bytes, count: int = 1) -> None:
        nonlocal written
        written += 1
        if written > 1:
            raise OSError("No space left on device")
        write(self, data, count)

    with monkeypatch.context() as patched:
        patched.setattr(JournalWriter, "_write", fail_second)
        with pytest.raises(OSError, match="not taken over: No space left"):
            await convert_old_journal(tmp_path, folder)
    assert segments(folder) == []
    assert old.exists()
    done = await convert_old_journal(tmp_path, folder)
    assert done is not None
    assert done.converted == 2
    (segment,) = segments(folder)
    entries, _, damaged = read_entries(segment, 0, 1 << 20)
    assert ([load_exchange(entry.payload).turn_id for entry in entries], damaged) == (["turn_a", "turn_b"], 0)


async def test_a_slow_disk_does_not_end_the_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, folder = tmp_path / OLD_JOURNAL, tmp_path / "journal"
    old.write_bytes(line("turn_a") + line("turn_b") + line("turn_c"))
    monkeypatch.setattr("store.journal._SLOW_WRITE_S", -1.0)  # every write counts as slow
    done = await convert_old_journal(tmp_path, folder)
    assert done is not None
    assert done.converted == 3
    found = [entry for path in segments(folder) for entry in read_entries(path, 0, 1 << 20)[0]]
    assert [load_exchange(entry.payload).turn_id for entry in found] == ["turn_a", "turn_b", "turn_c"]


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf")])
def test_a_logprob_that_is_no_number_costs_the_training_and_not_the_turn(logprob: float) -> None:
    captured = load_exchange(convert_line(line("turn_a")))
    captured.reply.completions = (replace(captured.reply.completions[0], sampling_logprobs=(-0.5, logprob)),)
    reply = load_exchange(dump_exchange(captured, None)).reply
    reason = token_drop_reason(reply.completions[0], reply.completions, reply.usage)
    assert reason is not None
    assert reason[0] is DropReason.TOKEN_MISMATCH
