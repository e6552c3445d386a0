"""`run.py demo`: ask, complain, wait for the version, and compare the replies to other questions before and after it.

A fresh Patina runs in a temporary folder on a port of its own and is used over HTTP alone, as by any client. Nothing of it stays.
Exit code 0: a version went live, and more of the compared replies are shorter than longer; 1: not, and the last lines say why.
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
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cli.arguments import given_settings
from cli.live import get_json, key_of
from serving.ports import free_port
from store.errors import ConfigError
from store.examples import COMPLAINTS, HELD_OUT, QUESTIONS
from store.processes import die_with_parent
from store.settings import Settings, child_environment
from store.texts import clip, strip_controls
from store.values import Json
from store.version import COMMAND

#: One for each question; all ask for the same, as a person says it again in other words.
_COMPLAINTS = (COMPLAINTS[0], "Too long. Keep it short.", "In one or two sentences, please.", "That is too much text. Be brief.")  # fmt: skip
#: Longest replies in tokens, to a question and to a complaint; requests at a time.
_REPLY, _AFTER_COMPLAINT, _AT_ONCE = 160, 60, 4
#: Longest waits in seconds: for a reply, for the start, for the version, and for a trainer that has nothing to do.
_REPLY_S, _READY_S, _VERSION_S, _IDLE_S = 300.0, 300.0, 1_500.0, 60.0
_OWN = frozenset({"home", "proxy_host", "proxy_port", "database", "record_dir"})
#: Unless the person gives them: the batch is complete with the last complaint, and patterns read it at once.
_DEFAULTS = {"batch_size": len(_COMPLAINTS), "max_wait_s": 120, "judge": "none", "canary_share": 0}


class _Patina:
    """The Patina that this demo started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._settings = Settings.load(home / "run" / "settings.json")
        self.policy = self._settings.policy

    def get(self, path: str) -> Json:
        found: Json = get_json(self._settings, path)
        return found

    def ask(self, messages: Sequence[Mapping[str, str]], *, trains: bool = True, tokens: int = _REPLY) -> str:
        """Return a reply of the live version. Raises: ConfigError: none came."""
        # Two greedy replies differ by the weights alone; in a person's conversations the model's own defaults hold.
        sampling = {} if trains else {"temperature": 0}
        body = {"model": self.policy, "messages": list(messages), "max_tokens": tokens, **sampling}
        headers = {"content-type": "application/json", "x-patina-train": "on" if trains else "off"}
        if key := key_of(self._settings):
            headers["x-patina-key"] = key
        url = f"{self._settings.gateway_url}/v1/chat/completions"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a web proxy
        try:
            with opener.open(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=_REPLY_S) as reply:  # fmt: skip
                return strip_controls(json.load(reply)["choices"][0]["message"].get("content") or "")
        except (OSError, ValueError, LookupError) as exc:  # urllib's errors are OSErrors
            raise ConfigError(f"the demo's Patina did not answer: {exc}") from exc


def run_demo(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run the demo; returns its exit code. Raises: ConfigError: the Patina that it starts does not start, or does not answer."""
    if not settings.trains_locally:
        raise ConfigError("the demo shows learning, and an --upstream alone does not learn")
    _say(f"A fresh Patina starts with {settings.policy} in a temporary folder. Ctrl-C ends the demo.")
    with _started(given_settings(arguments)) as patina:
        result = _show(patina)
    if arguments.json is not None:
        try:
            arguments.json.write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {arguments.json}: {error.strerror or error}") from error
    _say(f"\nYour turn: `{COMMAND}` starts Patina for you, and its page (“Try it”) has questions to click.")
    return 0 if result["learned"] else 1


@contextmanager
def _started(given: Mapping[str, object]) -> Iterator[_Patina]:
    """Start a Patina in a temporary folder; end it and remove the folder whatever happens."""
    home = Path(tempfile.mkdtemp(prefix="patina-demo-"))
    chosen = _DEFAULTS | {name: value for name, value in given.items() if name not in _OWN}
    own = [
        f"--home={home}",
        "--proxy-host=127.0.0.1",
        f"--proxy-port={free_port()}",
        "--database=",
        "--record-dir=",
    ]
    command = [
        sys.executable,
        "-m",
        "cli",
        *(f"--set={name}={value}" for name, value in chosen.items()),
        *own,
    ]
    log = home / "start.log"
    with log.open("wb") as output:
        # A session of its own: Ctrl-C reaches the demo alone, which then stops the other in order.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=child_environment(), start_new_session=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        yield _wait_ready(process, home, log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[bytes], home: Path, log: Path) -> _Patina:
    progress = _Progress()
    while process.poll() is None and progress.seconds < _READY_S:
        progress.show("the model is loading")
        if (home / "run" / "settings.json").exists():
            patina = _Patina(home)
            try:
                health = patina.get("/healthz")
            except ConfigError:
                pass  # it does not listen yet
            else:
                if health["backend"]["ready"] and health["record"]["available"]:
                    return patina
        time.sleep(0.5)
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    why = next((line for line in reversed(lines) if line.strip()), "no word of why").removeprefix("patina: ")
    raise ConfigError(f"the demo's Patina did not start: {why}")


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
        for question, old, new in list(zip(HELD_OUT, before, now, strict=True))[:3]:
            _say("\n" + side_by_side(question, old, new, shutil.get_terminal_size().columns))
        result |= compare(before, now) | {"questions": HELD_OUT, "before": before, "now": now}
        _say(f"\n{sentence(result)}")
        done = subprocess.run(
            [sys.executable, "-m", "cli", "rollback", "0", f"--home={patina.home}"],
            env=child_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        _say(f"\nUndo: `{COMMAND} rollback 0`\n  {(done.stdout or done.stderr).strip()}")
    else:
        _say(f"\nNo version went live, and nothing changed: {why_not}")
    return result | {"seconds": round(time.monotonic() - began)}


def _held_out_replies(patina: _Patina) -> list[str]:
    progress = _Progress()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = [
            pool.submit(patina.ask, [{"role": "user", "content": one}], trains=False) for one in HELD_OUT
        ]
        while (done := sum(one.done() for one in asked)) < len(asked):
            progress.show(f"{done} of {len(asked)} replies")
            time.sleep(0.5)
    return [one.result() for one in asked]


def _complain(patina: _Patina) -> None:
    """Ask a question for each complaint, and complain about the reply."""

    def talk(question: str, complaint: str) -> tuple[str, ...]:
        messages = [{"role": "user", "content": question}]
        reply = patina.ask(messages)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": complaint}]
        return question, reply, complaint, patina.ask(messages, tokens=_AFTER_COMPLAINT)

    width = max(40, shutil.get_terminal_size().columns - 11)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for texts in pool.map(talk, QUESTIONS, _COMPLAINTS):
            _say("")
            for number, text in enumerate(texts):
                _say(
                    f"  {'model ' if number % 2 else 'person'}   {clip(text, 2 * width if number == 1 else width)}"
                )


def _wait_for_version(patina: _Patina) -> tuple[int, str]:
    """Wait for the first version; returns it and "", or 0 and why there is none."""
    progress, notes = _Progress(), ""
    idle_since = time.monotonic()
    while True:
        status = patina.get("/v1/patina/status")
        detail: Json = status["processes"].get("trainer", {}).get("detail", {})
        if not notes and (notes := "\n".join(f"  {note}" for note in detail.get("notes") or ())):
            _say(f"\n{notes}")
        if version := status["live"].get(patina.policy, 0):
            return version, ""
        if why := why_none(status):
            return 0, why
        if detail.get("phase") or status["stages"].keys() & {"answered", "scored", "claimed"}:
            idle_since = time.monotonic()
        if time.monotonic() - idle_since > _IDLE_S or progress.seconds > _VERSION_S:
            stages = ", ".join(f"{number} {stage}" for stage, number in status["stages"].items())
            return 0, f"none was made in {progress.seconds:.0f} s; turns: {stages}"
        progress.show(detail["phase"] if detail.get("phase") else "the complaints are being read")
        time.sleep(1.0)


def why_none(status: Json) -> str:
    """Return why the first version will not be, from `/v1/patina/status`; "" while it may."""
    if status["last_step"] and status["last_step"]["error"]:
        return str(status["last_step"]["error"])
    if status["stages"].keys() & {"answered", "scored", "claimed"}:
        return ""
    dropped = {code: number for code, number in status["drop_reasons"].items() if code != "opted_out"}
    if sum(dropped.values()) < len(_COMPLAINTS):
        return ""
    return "the complaints were not used: " + ", ".join(
        f"{number} {code}" for code, number in dropped.items()
    )


def compare(before: Sequence[str], now: Sequence[str]) -> Json:
    """Return how many replies are shorter and longer than before, in words, and the mean words of both."""
    counts = [(len(old.split()), len(new.split())) for old, new in zip(before, now, strict=True)]
    shorter, longer = sum(new < old for old, new in counts), sum(new > old for old, new in counts)
    means = [sum(column) / len(counts) for column in zip(*counts, strict=True)]
    return {
        "n": len(counts), "shorter": shorter, "longer": longer, "words_before": means[0], "words_now": means[1], "learned": shorter > longer,
    }  # fmt: skip


def sentence(result: Json) -> str:
    """Return the numbers of `compare` in words."""
    return (
        f"{'It learned' if result['learned'] else 'It did not learn'}: of {result['n']} replies {result['shorter']} are shorter than before "
        f"and {result['longer']} longer; {result['words_before']:.0f} words on average before, {result['words_now']:.0f} now."
    )


def side_by_side(question: str, before: str, now: str, width: int) -> str:
    """Return a question with its two replies in columns of at most about eight lines."""
    column = max(20, (width - 5) // 2)
    old, new = (textwrap.wrap(clip(text, 7 * column), column) or ["(nothing)"] for text in (before, now))
    rows = [("before", "now"), ("-" * column, "-" * column)]
    rows += [(old[i] if i < len(old) else "", new[i] if i < len(new) else "") for i in range(max(len(old), len(new)))]  # fmt: skip
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
