"""`run.py demo`: ask, complain, wait for the version, and compare the replies to other questions before and after it.

A fresh Patina runs in a temporary folder on a port of its own and is used over HTTP alone, as by any client. Nothing of it stays.
Exit code 0: a version went live, and more than half of the compared replies are clearly shorter; 1: not, and the last lines say why.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cli.arguments import given_settings
from cli.live import get_json, post_json
from serving.ports import free_port
from store.errors import ConfigError
from store.examples import COMPLAINTS, HELD_OUT, QUESTIONS
from store.processes import die_with_parent
from store.settings import Settings, child_environment
from store.texts import clip, counted, strip_controls
from store.values import Json
from store.version import COMMAND

#: One for each question; all ask for the same, as a person says it again in other words.
_COMPLAINTS = (COMPLAINTS[0], "Too long. Keep it short.", "In one or two sentences, please.", "That is too much text. Be brief.")  # fmt: skip
#: Longest replies in tokens, to a question and to a complaint; requests at a time.
_REPLY, _AFTER_COMPLAINT, _AT_ONCE = 160, 60, 4
#: Longest waits in seconds: for a reply, for the start, and for the version.
_REPLY_S, _READY_S, _VERSION_S = 300.0, 300.0, 1_500.0
_OWN = frozenset({"home", "proxy_host", "proxy_port", "database", "record_dir"})
#: Unless the person gives them: the batch is complete with the last complaint, and patterns read it at once.
_DEFAULTS = {"batch_size": len(_COMPLAINTS), "max_wait_s": 120, "judge": "none", "canary_share": 0}


class _Patina:
    """The Patina that this demo started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._settings = Settings.load(home / "run" / "settings.json")
        self.policy = self._settings.policy

    def get(self, path: str) -> Any:
        return get_json(self._settings, path)

    def ask(self, messages: Sequence[Mapping[str, str]], *, trains: bool = True, tokens: int = _REPLY) -> str:
        """Return a reply of the live version. Raises: ConfigError: none came."""
        # Two greedy replies differ by the weights alone; in a person's conversations the model's own defaults hold.
        sampling = {} if trains else {"temperature": 0}
        body = {"model": self.policy, "messages": list(messages), "max_tokens": tokens, **sampling}
        headers = {"x-patina-train": "on" if trains else "off"}
        found = post_json(self._settings, "/v1/chat/completions", body, headers, timeout_s=_REPLY_S)
        return strip_controls(found["choices"][0]["message"].get("content") or "")


def run_demo(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run the demo; returns its exit code. Raises: ConfigError: the Patina that it starts does not start, or does not answer."""
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise ConfigError(f"--json {arguments.json}: there is no such folder")
    if not settings.trains_locally:
        raise ConfigError("the demo shows learning, and an --upstream alone does not learn")
    _say(f"A fresh Patina starts with {settings.policy} in a temporary folder. Ctrl-C ends the demo.")
    with _started(given_settings(arguments)) as patina:
        result = _show(patina)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
    _say(f"\nYour turn: `{COMMAND}` starts Patina for you, and its page (“Try it”) has questions to click.")
    return 0 if result["learned"] else 1


@contextmanager
def _started(given: Mapping[str, object]) -> Iterator[_Patina]:
    """Start a Patina in a temporary folder; end it and remove the folder whatever happens."""
    chosen = _DEFAULTS | {name: value for name, value in given.items() if name not in _OWN}
    flags = [f"--set={name}={value}" for name, value in chosen.items()]
    flags += ["--proxy-host=127.0.0.1", f"--proxy-port={free_port()}", "--database=", "--record-dir="]
    with tempfile.TemporaryDirectory(prefix="patina-demo-", ignore_cleanup_errors=True) as home:
        log = Path(home) / "start.log"
        with log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops the other in order.
            process = subprocess.Popen(
                [sys.executable, "-m", "cli", f"--home={home}", *flags], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=child_environment(), start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        try:
            yield _wait_ready(process, Path(home), log)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], home: Path, log: Path) -> _Patina:
    progress = _Progress()
    while process.poll() is None and progress.seconds < _READY_S:
        progress.show("the model is loading")
        if (home / "run" / "settings.json").exists():
            patina = _Patina(home)
            with suppress(ConfigError):  # it does not listen yet
                health = patina.get("/healthz")
                if health["backend"]["ready"] and health["record"]["available"]:
                    return patina
        time.sleep(0.5)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no word of why"]
    raise ConfigError(f"the demo's Patina did not start: {lines[-1].removeprefix('patina: ')}")


def _show(patina: _Patina) -> Json:
    """Run the conversations and the comparison; returns what came of them."""
    began = time.monotonic()
    _say(f"\n{len(HELD_OUT)} questions are asked before anything is learned, and never trained on.")
    before = _held_out_replies(patina)
    _say("\nNow a person asks other questions, and says the same about each reply:")
    _complain(patina)
    version, why_not = _wait_for_version(patina)
    result: Json = {"model": patina.policy, "version": version, "why_not": why_not, "learned": False}
    if version:
        _say(f"\nVersion {version} is live. The first questions again, without a word about length:")
        now = _held_out_replies(patina)
        for question, old, new in list(zip(HELD_OUT, before, now, strict=True))[:2]:
            _say("\n" + side_by_side(question, old, new, shutil.get_terminal_size().columns))
        result |= compare(before, now) | {"questions": HELD_OUT, "before": before, "now": now}
        _say(f"\n{sentence(result)}")
        undo = [sys.executable, "-m", "cli", "rollback", "0", f"--home={patina.home}", f"--served-model-name={patina.policy}"]  # fmt: skip
        done = subprocess.run(undo, env=child_environment(), capture_output=True, text=True, check=False)
        _say(f"\nUndo: `{COMMAND} rollback 0`\n  {(done.stdout or done.stderr).strip()}")
    else:
        _say(f"\nNo version went live, and nothing changed: {why_not}")
    return result | {"seconds": round(time.monotonic() - began)}


def _held_out_replies(patina: _Patina) -> list[str]:
    progress = _Progress()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        messages = [[{"role": "user", "content": one}] for one in HELD_OUT]
        asked = [pool.submit(patina.ask, one, trains=False) for one in messages]
        while (done := sum(one.done() for one in asked)) < len(asked):
            progress.show(f"{done} of {len(asked)} replies")
            time.sleep(0.5)
    return [one.result() for one in asked]


def _complain(patina: _Patina) -> None:
    def talk(question: str, complaint: str) -> tuple[str, ...]:
        messages = [{"role": "user", "content": question}]
        reply = patina.ask(messages)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": complaint}]
        return question, reply, complaint, patina.ask(messages, tokens=_AFTER_COMPLAINT)

    width = max(40, shutil.get_terminal_size().columns - 11)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for texts in pool.map(talk, QUESTIONS, _COMPLAINTS):
            parts = zip(("person", "model", "person", "model"), texts, (1, 2, 1, 1), strict=True)
            _say("\n" + "\n".join(f"  {who:<8} {clip(text, lines * width)}" for who, text, lines in parts))


def _wait_for_version(patina: _Patina) -> tuple[int, str]:
    """Wait for the first version; returns it and "", or 0 and why there is none."""
    progress, notes = _Progress(), ""
    while progress.seconds < _VERSION_S:
        status = patina.get("/v1/patina/status")
        detail: Json = status["processes"].get("trainer", {}).get("detail", {})
        if not notes and (notes := "\n".join(f"  {note}" for note in detail.get("notes") or ())):
            _say(f"\n{notes}")
        if version := status["live"].get(patina.policy, 0):
            return version, ""
        if why := why_none(status):
            return 0, why
        progress.show(detail["phase"] if detail.get("phase") else "the complaints are being read")
        time.sleep(1.0)
    stages = ", ".join(
        f"{number} {stage}" for stage, number in patina.get("/v1/patina/status")["stages"].items()
    )
    return 0, f"none was made in {progress.seconds:.0f} s; turns: {stages}"


def why_none(status: Json) -> str:
    """Return why the first version will not be, from `/v1/patina/status`; "" while it may."""
    if status["last_step"] and status["last_step"]["error"]:
        return str(status["last_step"]["error"])
    dropped = {code: number for code, number in status["drop_reasons"].items() if code != "opted_out"}
    waits = status["stages"].keys() & {"answered", "scored", "claimed"}
    if waits or sum(dropped.values()) < len(_COMPLAINTS):
        return ""
    words = ", ".join(f"{number} {code}" for code, number in dropped.items())
    return f"the complaints were not used: {words}"


def compare(before: Sequence[str], now: Sequence[str]) -> Json:
    """Return how many replies are shorter and longer than before, by a tenth of the words or more, and the mean words of both."""
    counts = [(len(old.split()), len(new.split())) for old, new in zip(before, now, strict=True)]
    # Two replies that the limit cuts differ by a word or two.
    shorter = sum(new < 0.9 * old for old, new in counts)
    longer = sum(old < 0.9 * new for old, new in counts)
    before_mean, now_mean = (sum(column) / len(counts) for column in zip(*counts, strict=True))
    found = {"n": len(counts), "shorter": shorter, "longer": longer, "learned": 2 * shorter > len(counts)}
    return found | {"words_before": before_mean, "words_now": now_mean}


def sentence(result: Json) -> str:
    """Return the numbers of `compare` in words."""
    return (
        f"{'It learned it' if result['learned'] else 'It did not learn it yet'}: of {result['n']} replies {result['shorter']} are clearly shorter than before "
        f"and {result['longer']} longer; {result['words_before']:.0f} words on average before, {result['words_now']:.0f} now."
    )


def side_by_side(question: str, before: str, now: str, width: int) -> str:
    """Return a question with its two replies in columns, each cut at about a dozen lines."""
    column = max(20, (width - 5) // 2)
    old, new = (textwrap.wrap(clip(text, 12 * column), column) or ["(nothing)"] for text in (before, now))
    heads = [f"{when}, {counted(len(text.split()), 'word')}" for when, text in (("before", before), ("now", now))]  # fmt: skip
    rows = [heads, ["-" * column] * 2, *zip_longest(old, new, fillvalue="")]
    return "\n".join([f"  {question}", *(f"  {left:<{column}} | {right}".rstrip() for left, right in rows)])


class _Progress:
    """What is waited for: a line for each new text, which a terminal rewrites with the seconds."""

    def __init__(self) -> None:
        self._began, self._text = time.monotonic(), ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def show(self, text: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\x1b[K  … {text}, {self.seconds:.0f} s", end="", flush=True)
        elif text != self._text:
            print(f"  … {text}", flush=True)
        self._text = text


def _say(text: str) -> None:
    """Print a text in place of the progress line."""
    print(("\r\x1b[K" if sys.stdout.isatty() else "") + text, flush=True)
