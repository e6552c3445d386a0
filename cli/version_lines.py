"""A line on the terminal for every version that goes live or is rejected, and for every other change of what is live.

The terminal may be shared: with more than the owner's key, a line names the policy and the keys, never what a person wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

from store.keys import KeyFile
from store.record import Record
from store.settings import Settings
from store.texts import clip, counted, strip_controls
from store.training_plan import duration
from store.values import BASE_VERSION, AdapterState, AliasMove, ReleaseStage, ScoredTurn, StepReport
from store.version import COMMAND

#: Wordings that a line quotes, and characters of each; characters of a reason.
_QUOTED, _QUOTE, _REASON = 2, 60, 200
#: Why an alias moved, by its actor; of other actors only that it moved. A step's own move is in the step's line.
_CAUSES = {
    "forget": "what was forgotten is out of it",
    "canary": "its comparison decided so",
    "rollback": "rolled back",
    "dashboard": "rolled back",
    "client": "rolled back",
    "lora delete": "the adapter was deleted",
}


class VersionLines:
    """Reads the record and returns what is new, in lines.

    Args:
        since: Unix time; earlier steps and moves are not reported.
    """

    def __init__(self, settings: Settings, since: float) -> None:
        self._settings = settings
        self._keys = KeyFile(settings.keys_file)
        self._start = self._step_at = self._move_at = since
        self._last_error = ""
        self._notes: tuple[str, ...] = ()
        self._measured = False

    @property
    def waits_for_plan(self) -> bool:
        """Whether the trainer has not said yet what a version costs: heartbeats, which say it, end no wait for changes."""
        return not self._notes

    async def look(self, record: Record) -> list[str]:
        """Return the lines for what happened since the last call. Raises: RecordError."""
        steps = await record.steps_finished_after(self._step_at)
        aliases = await record.aliases()
        lines = [] if self._notes else await self._cost_lines(record)
        for step in steps:
            self._step_at = step.finished_at or self._step_at
            if line := await self._step_line(record, step, aliases):
                lines.append(line)
                if step.version is not None and step.finished_at is not None and not self._measured:
                    self._measured = True
                    lines.append(
                        f"measured here: a version takes about {duration(step.finished_at - step.started_at)}"
                    )
        for move in sorted(aliases.values(), key=lambda one: one.moved_at):
            if move.moved_at > self._move_at:
                self._move_at = move.moved_at
                if move.actor != "trainer":
                    lines.append(self._moved(move))
        return [strip_controls(line) for line in lines]

    async def _cost_lines(self, record: Record) -> list[str]:
        """Return what the trainer says of a version's cost on this machine, once it has measured it."""
        beat = await record.beat_of("trainer")
        if beat is None or beat.at < self._start:
            return []
        self._notes = tuple(beat.detail.get("notes") or ())
        return [f"training: {note}" for note in self._notes]

    async def _step_line(self, record: Record, step: StepReport, aliases: dict[str, AliasMove]) -> str:
        live = aliases[step.policy].version if step.policy in aliases else 0
        stays = f"{_version(live)} stays live"
        if step.version is None:
            if not step.error or step.error == self._last_error:
                return ""
            self._last_error = step.error
            return f"training{self._of(step.policy)} failed: {stays}{self._because(step.error)}"
        adapter = await record.adapter(step.policy, step.version)
        if adapter is None:
            return ""
        name = f"version {step.version}{self._of(step.policy)}"
        if adapter.state is AdapterState.REJECTED:
            return f"{name} was rejected, nothing changed: {stays}{self._because(adapter.reason)}"
        if live == step.version:
            state = "is live"
        elif trial := await record.canary_releases(step.policy, stages={ReleaseStage.RUNNING}):
            state = f"is on trial with {trial[-1].share:.0%} of the new conversations"
        else:
            return ""  # another one was made live meanwhile
        turns = await record.trained_turns(step.policy, version=step.version)
        moves = [move.version for move in await record.alias_moves(step.policy)]
        before = next((version for version in reversed(moves) if version != step.version), BASE_VERSION)
        undo = self._command(f"rollback {before}", step.policy)
        return f"{name} {state}: {self._learned(turns, adapter.reason)} · undo: {undo}"

    def _learned(self, turns: Sequence[ScoredTurn], reason: str) -> str:
        if self._is_shared:
            names = ", ".join(sorted({turn.key_name for turn in turns}))
            return f"learned from {counted(len(turns), 'reaction')}" + (f" of {names}" if names else "")
        said = [_own_words(turn) for turn in reversed(turns) if turn.verdict.hint]
        said = said or [_own_words(turn) for turn in reversed(turns)]
        texts = list(dict.fromkeys(text for text in said if text))
        if not texts:
            return clip(reason, _REASON)
        more = f" and {len(texts) - _QUOTED} more" if len(texts) > _QUOTED else ""
        return "learned " + ", ".join(f'"{text}"' for text in texts[:_QUOTED]) + more

    def _moved(self, move: AliasMove) -> str:
        cause = _CAUSES.get(move.actor, "it was chosen")
        again = self._command("versions", move.policy)
        return f"{_version(move.version)}{self._of(move.policy)} is live now: {cause} · all versions: {again}"

    def _because(self, reason: str) -> str:
        """Return a reason, which may quote a person's words."""
        return f" · why: {self._command('versions')}" if self._is_shared else f" ({clip(reason, _REASON)})"

    def _of(self, policy: str) -> str:
        return f" of {policy}" if self._is_shared or policy != self._settings.policy else ""

    @property
    def _is_shared(self) -> bool:
        return any(key.revoked_at is None for key in self._keys.read())

    def _command(self, words: str, policy: str = "") -> str:
        other = f" --policy {policy}" if policy not in ("", self._settings.policy) else ""
        return command(self._settings, words + other)


def command(settings: Settings, words: str) -> str:
    """Return a command as a person types it for this home."""
    default = Settings.model_fields["home"].default.expanduser()
    return f"{COMMAND} {words}" + ("" if settings.home == default else f" --home {settings.home}")


def _version(number: int) -> str:
    return f"version {number}" if number else "version 0 (the base model)"


def _own_words(turn: ScoredTurn) -> str:
    """Return what the person wrote: the hint where it is a part of it, and not a judge's own wording."""
    hint, text = turn.verdict.hint or "", turn.next_text
    return clip(hint if hint and hint in text else text or hint, _QUOTE)
