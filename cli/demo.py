"""`run.py demo`: ask, complain, wait for the version, and compare replies to other questions before and after it.

A fresh Patina runs in a temporary folder on a port of its own; it is used over HTTP alone, as any client would. Nothing of it stays.
Exit code 0: a version went live, and more of the compared replies are shorter than longer; 1: not, and the last lines say what happened.
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
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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

#: One for each question; all of them ask for the same, as a person does who says it again.
_COMPLAINTS = (
    COMPLAINTS[0],
    "Too long. Keep it short, please.",
    "Please answer in one or two sentences.",
    "That is too much text. Be brief.",
)
#: Longest replies, in tokens: to a question, and to a complaint.
_REPLY, _AFTER_COMPLAINT = 160, 60
#: Requests at a time; seconds for a reply, for the start, and for the version.
_AT_ONCE, _REPLY_S, _READY_S, _VERSION_S = 4, 300.0, 300.0, 1_500.0
#: Verdicts without a version and without a step for so long: there will be none.
_IDLE_S = 60.0
_OWN = frozenset({"home", "proxy_host", "proxy_port", "database", "record_dir"})
#: What a demo needs to be soon over, unless the person gives it: the first batch begins with the last complaint, and no judge is asked.
_DEFAULTS = {"batch_size": str(len(_COMPLAINTS)), "max_wait_s": "120", "judge": "none", "canary_share": "0"}


@dataclass(frozen=True, slots=True)
class Compared:
    """One held-out question with its reply before the version and now."""

    question: str
    before: str
    now: str


def summary(pairs: Sequence[Compared]) -> Json:
    """Return how many replies are shorter and longer, in words, and the mean words before and now."""
    counts = [(len(one.before.split()), len(one.now.split())) for one in pairs]
    n = len(counts)
    return {
        "n": n,
        "shorter": sum(now < before for before, now in counts),
        "longer": sum(now > before for before, now in counts),
        "words_before": sum(before for before, _ in counts) / n,
        "words_now": sum(now for _, now in counts) / n,
    }


def sentence(found: Json) -> str:
    """Return the numbers of `summary` in words."""
    same = found["n"] - found["shorter"] - found["longer"]
    return (
        f"{found['shorter']} of {found['n']} replies to questions that it was not trained on are shorter, {found['longer']} longer, {same} the "
        f"same; {found['words_before']:.0f} words on average before, {found['words_now']:.0f} now"
    )


def side_by_side(one: Compared, width: int) -> str:
    """Return a question with its two replies in columns, each cut at eight lines."""
    column = max(20, (width - 5) // 2)
    left, right = (
        textwrap.wrap(clip(text, 8 * column - 40), column) or ["(nothing)"] for text in (one.before, one.now)
    )
    rows = [("before", "now"), ("-" * column, "-" * column)]
    rows += [
        (left[i] if i < len(left) else "", right[i] if i < len(right) else "")
        for i in range(max(len(left), len(right)))
    ]
    return "\n".join([f"  {one.question}", *(f"  {a:<{column}} | {b}".rstrip() for a, b in rows)])


def why_none(status: Json) -> str:
    """Return why there is no version, from what the status says."""
    if status["last_error"]:
        return str(status["last_error"])
    dropped = {code: n for code, n in status["drop_reasons"].items() if code != "opted_out"}
    if dropped:
        return "complaints were dropped: " + ", ".join(f"{n} {code}" for code, n in dropped.items())
    return "no step ended: " + ", ".join(f"{n} {stage}" for stage, n in status["stages"].items())


def run_demo(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run the demo; returns its exit code.

    Raises:
        ConfigError: the Patina that it starts does not start, or does not answer.
    """
    if settings.upstream:
        raise ConfigError("the demo shows learning, and an --upstream alone does not learn")
    _say(
        f"A fresh Patina starts with {settings.policy}, in a temporary folder. Ctrl-C ends the demo at any time."
    )
    with _started(given_settings(arguments)) as patina:
        result = _show(patina)
    if arguments.json is not None:
        try:
            arguments.json.write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {arguments.json}: {error.strerror or error}") from error
    _say(f"\nYour turn: `{COMMAND}` starts Patina for you, and its page (“Try it”) has questions to click.")
    return 0 if result["learned"] else 1


class _Patina:
    """The Patina that this demo started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._settings = Settings.load(home / "run" / "settings.json")
        self.policy = self._settings.policy

    def status(self) -> Json:
        found: Json = get_json(self._settings, "/v1/patina/status")
        return found

    def is_ready(self) -> bool:
        try:
            found = get_json(self._settings, "/healthz")
        except ConfigError:
            return False  # it does not listen yet
        return bool(found["backend"]["ready"] and found["record"]["available"])

    def ask(self, messages: Sequence[Mapping[str, str]], *, trains: bool, tokens: int = _REPLY) -> str:
        """Return the live version's reply. Raises: ConfigError: there is none."""
        # Two greedy replies differ by the weights alone; a person's own are sampled as the model's makers say.
        more = {} if trains else {"temperature": 0}
        body = {"model": self.policy, "messages": list(messages), "max_tokens": tokens, **more}
        headers = {"content-type": "application/json", "x-patina-train": "on" if trains else "off"}
        if key := key_of(self._settings):
            headers["x-patina-key"] = key
        url = f"{self._settings.gateway_url}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a web proxy
        try:
            with opener.open(request, timeout=_REPLY_S) as reply:
                text = json.load(reply)["choices"][0]["message"].get("content") or ""
        except (OSError, ValueError, KeyError) as exc:  # urllib's errors are OSErrors
            raise ConfigError(f"the demo's Patina did not answer: {exc}") from exc
        return strip_controls(text)


@contextmanager
def _started(given: Mapping[str, object]) -> Iterator[_Patina]:
    """Start a Patina in a temporary folder, and remove both at the end."""
    home = Path(tempfile.mkdtemp(prefix="patina-demo-"))
    chosen = {name: str(value) for name, value in given.items() if name not in _OWN}
    flags = [f"--set={name}={value}" for name, value in {**_DEFAULTS, **chosen}.items()]
    command = [
        sys.executable, "-m", "cli", *flags, f"--home={home}", "--proxy-host=127.0.0.1", f"--proxy-port={free_port()}", "--database=", "--record-dir=",
    ]  # fmt: skip
    log = home / "start.log"
    with log.open("wb") as output:
        # A session of its own: Ctrl-C reaches this process, which stops the other in order.
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
    began = time.monotonic()
    while time.monotonic() - began < _READY_S:
        if process.poll() is not None:
            break
        progress.show("the model is loading")
        if (home / "run" / "settings.json").exists() and (patina := _Patina(home)).is_ready():
            progress.end()
            return patina
        time.sleep(0.5)
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    raise ConfigError(
        f"the demo's Patina did not start: {lines[-1].removeprefix('patina: ') if lines else 'no word of why'}"
    )


def _show(patina: _Patina) -> Json:
    """Run the conversation; returns what came of it."""
    began = time.monotonic()
    _say(
        f"\n{len(HELD_OUT)} questions are asked first and never trained on. Their replies are kept for comparison."
    )
    before = _replies(patina)
    _say("\nNow a person talks to it, and says the same thing in four ways:")
    _complain(patina)
    version, reason = _wait_for_version(patina)
    result: Json = {"model": patina.policy, "version": version, "reason": reason, "learned": False}
    if not version:
        _say(f"\nNo version went live, so nothing changed: {reason}")
    else:
        _say(f"\nVersion {version} is live. The held-out questions again, with no instruction in the prompt:")
        pairs = [Compared(*one) for one in zip(HELD_OUT, before, _replies(patina), strict=True)]
        for pair in pairs[:3]:
            _say("\n" + side_by_side(pair, shutil.get_terminal_size().columns))
        numbers = summary(pairs)
        result |= {
            **numbers,
            "learned": numbers["shorter"] > numbers["longer"],
            "replies": [asdict(one) for one in pairs],
        }
        verdict = "It learned" if result["learned"] else "It did not learn"
        _say(f"\n{verdict}: {sentence(numbers)}.")
        _undo(patina)
    result["seconds"] = round(time.monotonic() - began)
    return result


def _replies(patina: _Patina) -> list[str]:
    """Return the replies to the held-out questions, which train nothing."""
    progress = _Progress()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = [
            pool.submit(patina.ask, [{"role": "user", "content": one}], trains=False) for one in HELD_OUT
        ]
        while (done := sum(one.done() for one in waiting)) < len(waiting):
            progress.show(f"{done} of {len(waiting)} replies")
            time.sleep(0.5)
        found = [one.result() for one in waiting]
    progress.end()
    return found


def _complain(patina: _Patina) -> None:
    """Ask a question for each complaint, and complain about the reply."""
    pairs = list(zip(QUESTIONS, _COMPLAINTS, strict=False))

    def talk(question: str, complaint: str) -> tuple[str, str, str, str]:
        asked = [{"role": "user", "content": question}]
        reply = patina.ask(asked, trains=True)
        asked += [{"role": "assistant", "content": reply}, {"role": "user", "content": complaint}]
        return question, reply, complaint, patina.ask(asked, trains=True, tokens=_AFTER_COMPLAINT)

    width = max(40, shutil.get_terminal_size().columns - 12)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for question, reply, complaint, after in pool.map(lambda pair: talk(*pair), pairs):
            _say(
                f"\n  person   {question}\n  model    {clip(reply, 3 * width)}\n  person   {complaint}\n  model    {clip(after, width)}"
            )


def _wait_for_version(patina: _Patina) -> tuple[int, str]:
    """Wait for the first version; returns it, or 0 and why there is none."""
    progress = _Progress()
    quiet_since = began = time.monotonic()
    notes: Sequence[str] = ()
    while time.monotonic() - began < _VERSION_S:
        status = patina.status()
        trainer = status["processes"].get("trainer")
        detail: Json = trainer["detail"] if trainer else {}
        if not notes and (notes := detail.get("notes") or ()):
            _say("\n" + "\n".join(f"  {note}" for note in notes))
        if version := status["live"].get(patina.policy, 0):
            progress.end()
            return version, ""
        step = status["last_step"]
        if step and step.get("error"):
            progress.end()
            return 0, step["error"]
        is_busy = bool(detail.get("phase")) or any(
            status["stages"].get(name) for name in ("answered", "scored", "claimed")
        )
        quiet_since = time.monotonic() if is_busy else quiet_since
        if time.monotonic() - quiet_since > _IDLE_S:
            progress.end()
            return 0, why_none(status)
        progress.show(f"training: {detail.get('phase') or 'waiting for the complaints to be read'}")
        time.sleep(1.0)
    progress.end()
    return 0, f"no version within {_VERSION_S / 60:.0f} minutes; {why_none(patina.status())}"


def _undo(patina: _Patina) -> None:
    """Roll back as a person does, and show that the base model is live."""
    command = [sys.executable, "-m", "cli", "rollback", "0", f"--home={patina.home}"]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"the rollback failed: {done.stderr.strip()}")
    _say(f"\nUndo: `{COMMAND} rollback 0`\n  {done.stdout.strip()}")


class _Progress:
    """A line that is rewritten on a terminal, and printed once for each new text anywhere else."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._text = ""

    def show(self, text: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\x1b[K  … {text}, {time.monotonic() - self._began:.0f} s", end="", flush=True)
        elif text != self._text:
            print(f"  … {text}", flush=True)
        self._text = text

    def end(self) -> None:
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)
