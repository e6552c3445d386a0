"""What each page shows, as plain values for the templates. Reads the record only."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard.charts import Node, Share, share, share_chart, tree_chart
from dashboard.damage import damage_of, sort_out
from recorder.linking import LINK_MEANINGS
from store.client_warnings import warnings_of
from store.drop_reasons import REMEDIES, SENTENCES, sentence_of
from store.heartbeats import SILENT_S, is_running
from store.lifecycle import DropReason
from store.record import Record
from store.releases import calibration_line, prediction_errors, preview_lines
from store.settings import DEFAULT_ORIGIN, Settings, origins_of, to_json
from store.texts import content_text, last_user_text, strip_controls
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    AliasMove,
    CanaryRelease,
    Heartbeat,
    Json,
    JudgedTurn,
    RecordStatus,
    ReleaseStage,
    StepReport,
    TurnKind,
    Wish,
)
from store.wish_states import describe_state, in_prompt, learnt_rows
from trainer.gate_bounds import LABELS, SHARES, Bound, bounds
from wire.classify import MEANINGS

#: Judged turns that the first page looks at; those of one point of its second chart, at least and at most; points that it aims at.
JUDGED, LEAST, MOST, POINTS = 2_000, 4, 25, 8
#: Versions that the first chart shows at most, and callers whose counts are kept.
CHART_POINTS, _MAX_CACHED = 60, 200
#: Newest steps whose duration the running one is compared with.
_STEPS_COMPARED = 20
#: Newest turns by which a client's traffic is judged.
CLIENT_TURNS = 500
#: Turns of one page of conversations, of one conversation, dropped turns of a page, and turns of a version's page.
CONVERSATION_TURNS, SESSION_TURNS, DROPPED, VERSION_TURNS = 300, 400, 60, 60
#: Numbers of a turn that a conversation's page reads.
_TURN_NUMBERS = (
    "turn_index",
    "link_confidence",
    "adapter_version",
    "created_at",
    "trained_in_version",
    "verdict",
)
#: Numbers of a turn that its own page reads, and those of what followed it and of its verdicts.
_STORY_NUMBERS, _PART_NUMBERS = (
    ("adapter_version", "created_at", "link_confidence", "trained_in_version"),
    ("created_at", "score", "value", "confidence"),
)
#: Metrics that a version's page shows, with what each means.
STEP_METRICS: dict[str, str] = {
    "turns": "turns in it",
    "loss": "loss of the first step",
    "loss_after": "loss of the last step",
    "teacher_shift": "how far the wishes move the teacher, nats a token",
    "gradient_norm": "gradient norm",
    "clip_fraction": "share of tokens that the ratio clip stopped",
    "optimizer_steps": "optimizer steps",
    "learning_rate": "learning rate",
}
#: The samples of a version by kind (`metrics["samples"]`), with what each means.
SAMPLES: dict[str, str] = {
    "wish": "replies that the teacher, who reads the wishes, judged",
    "verdict": "rated replies",
    "example": "replies of uploaded files",
    "anchor": "replies of the base model that are to stay",
}
#: What a step's time went to, in order.
TIMES: dict[str, str] = {
    "queue_s": "queue", "claim_s": "claim", "teach_s": "teacher", "train_s": "training", "gate_s": "gate", "write_s": "write",
}  # fmt: skip
#: The phases of a step that runs, in order.
PHASES = tuple(about for about in TIMES.values() if about != "queue")
#: What a device reports that training shares with the engine.
DEVICE: dict[str, str] = {
    "device_wait_s": "training waited for the GPU, s",
    "device_yields": "times that training gave the GPU back to the engine",
    "interrupted_s": "training paused for requests, s",
    "interruptions": "times that requests paused training",
}


#: Natural logs of 90, 50, 20 and 5 %: bounds between the levels of a token.
_LEVELS = (-0.105, -0.693, -1.609, -2.996)


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Who looks at the page.

    Attributes:
        name: of the key that signed in.
        key_name: only turns of this key are shown; None: all (the owner).
        policy: the policy whose versions are shown.
        has_own_policy: no other key trains it.
    """

    name: str
    key_name: str | None
    policy: str
    has_own_policy: bool
    csrf: str

    @property
    def is_owner(self) -> bool:
        return self.key_name is None

    @property
    def can_change(self) -> bool:
        """Whether the viewer may roll the policy back, pause it, and read the words that made its versions."""
        return self.is_owner or self.has_own_policy


@dataclass(slots=True)
class StatusCache:
    """The counts of the record, read in the background: over a million turns they take longer than a page may.

    A page shows the newest counts that were read; None: they are read for the first time.
    """

    max_age_s: float = 3.0
    wait_s: float = 0.03
    _found: dict[tuple[str, str | None], tuple[float, RecordStatus]] = field(default_factory=dict, init=False)
    _tasks: dict[tuple[str, str | None], asyncio.Task[RecordStatus]] = field(default_factory=dict, init=False)

    async def get(self, record: Record, viewer: Viewer) -> RecordStatus | None:
        """Return the owner's counts, or those of another viewer's own turns. Raises: RecordError: they cannot be read."""
        who = ("", None) if viewer.is_owner else (viewer.policy, viewer.key_name)
        return await self._newest(record, who, self.wait_s)

    async def of_owner(self, record: Record) -> RecordStatus:
        """Return the counts of all turns, however long they take. Raises: RecordError: they cannot be read."""
        found = await self._newest(record, ("", None), None)
        assert found is not None
        return found

    async def _newest(
        self, record: Record, who: tuple[str, str | None], wait_s: float | None
    ) -> RecordStatus | None:
        at, found = self._found.get(who, (float("-inf"), None))
        if found is not None and time.monotonic() - at <= self.max_age_s:
            return found
        policy, key_name = who
        if who not in self._tasks:
            counts = record.status() if key_name is None else record.status(policy=policy, key_name=key_name)
            self._tasks[who] = asyncio.create_task(counts)
        task = self._tasks[who]
        await asyncio.wait([task], timeout=wait_s)
        if not task.done():
            return found
        self._tasks.pop(who, None)
        found = task.result()
        self._found[who] = (time.monotonic(), found)
        while len(self._found) > _MAX_CACHED:
            del self._found[next(iter(self._found))]
        return found


async def overview(record: Record, viewer: Viewer) -> Json:
    """Return the first page: is it learning, and what was it asked for."""
    judged, damaged = sort_out(
        await record.judged_turns(viewer.policy, JUDGED, viewer.key_name),
        lambda one: f"The verdict on turn {one.turn_id}",
    )
    live = await record.live_version(viewer.policy)
    by_version, over_time = shares_by_version(judged), shares_over_time(judged)
    trials, damaged_trials = sort_out(
        await record.canary_releases(viewer.policy, stages=(ReleaseStage.RUNNING,)), _release_name
    )
    return {
        "live": live,
        "trial": next(iter(trials), None),
        "damaged": [*damaged, *damaged_trials],
        "judged": len(judged),
        "complaints": sum(turn.value == -1 for turn in judged),
        "since_complaint": since_last_complaint(judged),
        "by_version": by_version,
        "version_chart": share_chart(
            by_version[-CHART_POINTS:], title="Complaints among judged turns, by version"
        ),
        "over_time": over_time,
        "time_chart": share_chart(over_time, title="Complaints among judged turns, over time"),
        "group": group_size(len(judged)),
        "is_paused": await record.is_paused(viewer.policy),
        "wishes": await listed_wishes(record, viewer.policy) if viewer.can_change else [],
        "trainer": await record.beat_of("trainer") if viewer.is_owner else None,
        "last_error": next(
            (step.error for step in await record.steps(viewer.policy, 20) if step.error), None
        ),
    }


def shares_by_version(judged: Sequence[JudgedTurn]) -> list[Share]:
    """Return the share of complaints among the judged turns of each version, in the order of the versions."""
    groups: dict[int, list[int]] = {}
    for turn in judged:
        groups.setdefault(turn.adapter_version, []).append(turn.value)
    return [
        share(f"v{version}", groups[version].count(-1), len(groups[version])) for version in sorted(groups)
    ]


def shares_over_time(judged: Sequence[JudgedTurn]) -> list[Share]:
    """Return the share of complaints in consecutive groups of judged turns; the last group may be smaller."""
    found = []
    size = group_size(len(judged))
    for start in range(0, len(judged), size):
        some = judged[start : start + size]
        label = format_time(some[0].created_at, "%m-%d %H:%M")
        found.append(share(label, sum(turn.value == -1 for turn in some), len(some)))
    return found


def format_time(at: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (ValueError, TypeError, OverflowError, OSError):
        return "at no time"  # of a row that was damaged


def group_size(count: int) -> int:
    """Return how many of ``count`` judged turns make one point: few at the beginning, so that a trend shows early."""
    return min(MOST, max(LEAST, -(-count // POINTS)))


def since_last_complaint(judged: Sequence[JudgedTurn]) -> int | None:
    """Return how many judged turns came after the last complaint; None: there was none."""
    for count, turn in enumerate(reversed(judged)):
        if turn.value == -1:
            return count
    return None


async def versions(record: Record, viewer: Viewer) -> Json:
    """Return all versions of the policy, newest first."""
    found, damaged = sort_out(await record.adapters(viewer.policy), lambda one: f"Version {one.version}")
    releases, damaged_releases = sort_out(await record.canary_releases(viewer.policy), _release_name)
    newest_moves = list(reversed(await record.alias_moves(viewer.policy)))[:20]
    moves, damaged_moves = sort_out(newest_moves, lambda one: f"A move by {one.actor}")
    return {
        "live": await record.live_version(viewer.policy),
        "versions": list(reversed(found)),
        "damaged": [*damaged, *damaged_releases],
        "can_serve": AdapterState.PUBLISHED,
        "pins": await record.pins(viewer.policy),
        "releases": {one.version: one for one in releases},
        "moves": moves,
        "damaged_moves": damaged_moves,
    }


def _release_name(release: CanaryRelease) -> str:
    return f"The trial of version {release.version}"


async def version(record: Record, viewer: Viewer, number: int) -> Json | None:
    """Return the page of one version; None: there is no such version."""
    adapter = await record.adapter(viewer.policy, number)
    if adapter is None:
        return None
    turns, count, hidden = await record.version_samples(viewer.policy, number, VERSION_TURNS, viewer.key_name)
    gate = adapter.metrics.get("gate") or {}
    releases, _ = sort_out(await record.canary_releases(viewer.policy), _release_name)
    adapters, _ = sort_out(await record.adapters(viewer.policy), lambda one: f"Version {one.version}")
    release = next((one for one in releases if one.version == number), None)
    return {
        "adapter": adapter,
        "live": await record.live_version(viewer.policy),
        "is_pinned": number in await record.pins(viewer.policy),
        "release": release,
        "turns": turns,
        "more": count - len(turns),
        "hidden": hidden,
        "measures": gate_measures(gate),
        "metrics": step_metrics(adapter.metrics),
        "phases": phases(adapter.metrics),
        "wishes": wish_measures(adapter.metrics, await record.wishes(viewer.policy))
        if viewer.can_change
        else [],
        "preview": list(preview_lines(adapter.metrics, release)) if viewer.can_change else [],
        "calibration": calibration_line(prediction_errors(adapters, releases)) if viewer.can_change else "",
        "changed": await record.preview_replies(viewer.policy, number, viewer.key_name),
        "back": version_before(await record.alias_moves(viewer.policy)),
        "examples": examples(gate),
    }


def version_before(moves: Sequence[AliasMove]) -> int:
    """Return the version that was live before the one that is; 0: the base model."""
    return moves[-2].version if len(moves) > 1 else BASE_VERSION


def wish_measures(metrics: Json, wishes: Sequence[Wish]) -> list[tuple[str, Json]]:
    """Return (words, measures) of each wish that a version learnt and that is still in the record."""
    texts = {wish.wish_id: wish.text for wish in wishes}
    return [(texts[row["wish_id"]], row) for row in learnt_rows(metrics) if row["wish_id"] in texts]


async def listed_wishes(record: Record, policy: str) -> list[tuple[Wish, str]]:
    """Return the wishes of a policy, the oldest first, with their states in words."""
    found = await record.wishes(policy)
    acting = {wish.wish_id for wish in in_prompt(found)} if await record.adds_wishes() else set[int]()
    return [(wish, describe_state(wish, is_in_prompt=wish.wish_id in acting)) for wish in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateMeasure:
    """What the gate measured of a version.

    Attributes:
        base: of the base model; None: unknown.
    """

    name: str
    base: float | None
    after: float
    bound: Bound | None

    @property
    def label(self) -> str:
        return LABELS.get(self.name, self.name)

    @property
    def is_beyond(self) -> bool:
        return self.bound is not None and self.bound.is_broken_by(self.after)

    @property
    def bound_text(self) -> str:
        if self.bound is None:
            return ""
        least, most = (
            None if one is None else measure_text(one, self.name)
            for one in (self.bound.least, self.bound.most)
        )
        if least is not None and most is not None:
            return f"{least} to {most}"
        return f"at most {most}" if least is None else f"at least {least}"


def measure_text(value: float | None, name: str) -> str:
    """Return a measure of the gate as it is shown: a share in percent."""
    if value is None:
        return ""
    return f"{100 * value:.0f} %" if name in SHARES else f"{value:.3g}"


def gate_measures(gate: Json) -> list[GateMeasure]:
    """Return each number that the gate took, in the order of `LABELS`; those of later programs last."""
    after, base = gate.get("after") or {}, gate.get("base") or {}
    limits = bounds(after, base, told=_figure((gate.get("told") or {}).get("facts")))
    places = {name: place for place, name in enumerate(LABELS)}
    found = [
        GateMeasure(name=name, base=_figure(base.get(name)), after=figure, bound=limits.get(name))
        for name, value in after.items()
        if (figure := _figure(value)) is not None
    ]
    return sorted(found, key=lambda one: places.get(one.name, len(places)))


def examples(gate: Json) -> list[tuple[str, str, str]]:
    """Return (question, the base model's reply, this version's reply) for the questions that both answered."""
    base = (gate.get("base") or {}).get("examples") or {}
    after = (gate.get("after") or {}).get("examples") or {}
    return [(question, base[question], reply) for question, reply in after.items() if question in base]


def step_metrics(metrics: Json) -> list[tuple[str, float]]:
    """Return (what, how much) of what is known of a step and its samples."""
    samples = metrics.get("samples")
    named = (
        (metrics, STEP_METRICS),
        (samples if isinstance(samples, dict) else {}, SAMPLES),
    )
    return [
        (about, figure)
        for values, names in named
        for name, about in names.items()
        if (figure := _figure(values.get(name))) is not None
    ]


def phases(metrics: Json) -> list[tuple[str, float]]:
    """Return (phase, seconds) of what is known of a step."""
    return [
        (about, value) for name, about in TIMES.items() if (value := _figure(metrics.get(name))) is not None
    ]


def _figure(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


async def unused(record: Record, viewer: Viewer, before: float | None) -> Json:
    """Return the main turns that will not train, newest first, each with its reason."""
    read = await record.dropped_turns(viewer.policy, DROPPED, before=before, key_name=viewer.key_name)
    sound, damaged = sort_out(read, lambda one: f"Turn {one.turn_id}")
    found = [one for one in sound if one.drop_reason in SENTENCES]
    damaged += [
        f"Turn {one.turn_id} is damaged: drop_reason {one.drop_reason} is unknown."
        for one in sound
        if one.drop_reason not in SENTENCES
    ]
    counts: dict[str, int] = {}
    for turn in found:
        counts[turn.drop_reason] = counts.get(turn.drop_reason, 0) + 1
    return {
        "turns": [(turn, sentence_of(DropReason(turn.drop_reason), turn.detail)) for turn in found],
        "counts": [
            (code, SENTENCES[DropReason(code)], REMEDIES.get(DropReason(code), ""), count)
            for code, count in counts.items()
        ],
        "damaged": damaged,
        "next_before": found[-1].dropped_at if found and len(read) == DROPPED else None,
        "warnings": warnings_of(await record.client_traffic(CLIENT_TURNS)) if viewer.is_owner else [],
    }


async def conversations(record: Record, viewer: Viewer, before: float | None) -> Json:
    found = await record.conversations(CONVERSATION_TURNS, before, viewer.key_name)
    read = sum(row.turns for row in found)
    rows, damaged = sort_out(found, lambda one: f"Conversation {one.session_id}")
    return {
        "rows": rows,
        "damaged": damaged,
        "next_before": min(row.first_at for row in rows) if rows and read == CONVERSATION_TURNS else None,
    }


async def conversation(record: Record, viewer: Viewer, session_id: str) -> Json | None:
    """Return one conversation as a tree of turns; None: there is none of this viewer."""
    turns = indent(await record.session_turns(session_id, SESSION_TURNS, viewer.key_name))
    return {"session_id": session_id, "turns": turns, "tree": tree_chart(branches(turns))} if turns else None


def indent(turns: Sequence[Json]) -> list[Json]:
    """Return the turns of a session in the order of a tree; those of each fork's other branches before the one that went on.

    The branch with the newest turn of a person went on. Each turn gets `depth`: 0 for the main line, more for branches; `lane`: the number
    of its line; `begins_branch`; and `went_on_from`: the turn before a fork whose other branches are shown in between, or None.
    """
    ids = {turn["turn_id"] for turn in turns}
    parent_of = {turn["turn_id"]: turn["parent_turn_id"] for turn in turns if turn["parent_turn_id"] in ids}
    newest = _newest_below(turns, parent_of)
    children: dict[str | None, list[Json]] = {}
    for turn in turns:
        children.setdefault(parent_of.get(turn["turn_id"]), []).append(turn)
    found: list[Json] = []
    lanes = 0
    pending = [(turn, 0, True) for turn in reversed(children.get(None, []))]
    lane_of: dict[str, int] = {}
    while pending:
        turn, depth, is_first = pending.pop()
        parent = parent_of.get(turn["turn_id"])
        lane = lanes if is_first else lane_of[turn["parent_turn_id"]]
        lanes += is_first
        lane_of[turn["turn_id"]] = lane
        is_fork = not is_first and len(children[parent]) > 1
        found.append(
            {
                **turn,
                "damage": damage_of(turn, _TURN_NUMBERS),
                "depth": depth,
                "lane": lane,
                "begins_branch": is_first and depth > 0,
                "went_on_from": parent if is_fork else None,
            }
        )
        if following := children.get(turn["turn_id"]):
            went_on = max(following, key=lambda one: newest[one["turn_id"]])
            pending.append((went_on, depth, False))
            pending += [(branch, depth + 1, True) for branch in reversed(following) if branch is not went_on]
    return found


def _newest_below(turns: Sequence[Json], parent_of: Mapping[str, str]) -> dict[str, tuple[bool, bool, int]]:
    """Return for each turn, by its id, what tells how new its branch is.

    A turn of a program, or one whose client asked not to train on it (the chat panel's second answer), counts where there is no other.
    """
    newest: dict[str, tuple[bool, bool, int]] = {}
    for place, turn in enumerate(turns):
        age = (turn["kind"] == TurnKind.MAIN, turn["drop_reason"] != DropReason.OPTED_OUT, place)
        above: str | None = turn["turn_id"]
        while (
            above is not None and newest.get(above, (False, False, -1)) < age
        ):  # a damaged row's circle ends, too
            newest[above] = age
            above = parent_of.get(above)
    return newest


def branches(turns: Sequence[Json]) -> list[Node]:
    """Return the nodes of the tree of a session whose turns `indent` ordered; [] where nothing branches."""
    columns: dict[str, int] = {}
    for turn in turns:
        columns[turn["turn_id"]] = columns.get(turn["parent_turn_id"], -1) + 1
    if all(turn["lane"] == 0 for turn in turns):
        return []
    return [
        Node(
            name=turn["turn_id"],
            parent=turn["parent_turn_id"] if turn["parent_turn_id"] in columns else "",
            column=columns[turn["turn_id"]],
            lane=turn["lane"],
            mark={-1: "bad", 1: "good"}.get(turn["verdict"], ""),
            label=strip_controls(message_text(turn["last_message"])[:80]) or "(no text)",
            is_main=turn["depth"] == 0,
        )
        for turn in turns
    ]


async def turn(record: Record, viewer: Viewer, reference: str) -> Json | None:
    """Return everything recorded about one turn; None: there is none of this viewer."""
    story = await record.story(reference)
    if story is None or (not viewer.is_owner and story["key_name"] != viewer.key_name):
        return None
    kind, link = story["kind_reason"], story["link_reason"]
    reason = DropReason(story["drop_reason"]) if story["drop_reason"] in SENTENCES else None
    return {
        "story": story,
        "damage": _take_damage_out(story),
        "asked": last_user_text(story["messages"]),
        "kind_meaning": MEANINGS.get(kind, ""),
        "link_meaning": LINK_MEANINGS.get(link, link),
        "evidence": [(code, weight, MEANINGS.get(code, "")) for code, weight in story["kind_evidence"]],
        "dropped_because": sentence_of(reason, story["drop_detail"]) if reason else "",
        "mend": REMEDIES.get(reason, "") if reason else "",
    }


def _take_damage_out(story: Json) -> list[str]:
    """Remove from a turn what no page can show, and return a sentence about each such part."""
    found = [f"{name} cannot be read" for name in story["unreadable"]]
    if no_numbers := damage_of(story, _STORY_NUMBERS):
        found.append(no_numbers)
    if story["drop_reason"] and story["drop_reason"] not in SENTENCES:
        found.append(f"drop_reason {story['drop_reason']} is unknown")
    if damage_of(story, ("link_confidence",)):
        story["link_confidence"] = None
    for name in ("next_states", "feedback", "verdicts"):
        found += [f"{name}: {damage}" for one in story[name] if (damage := damage_of(one, _PART_NUMBERS))]
        story[name] = [one for one in story[name] if not damage_of(one, _PART_NUMBERS)]
    return found


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token of a reply: its text where it is known, and its log-probability when it was sampled and under the live version."""

    text: str
    sampled: float | None
    live: float | None

    @property
    def level(self) -> int:
        """0 (certain) to 4 (unlikely), by the probability when it was sampled."""
        logprob = self.sampled if self.sampled is not None else self.live
        return 0 if logprob is None else sum(logprob < bound for bound in _LEVELS)


def token_rows(ids: Sequence[int], logprobs: Sequence[float], scored: Json) -> list[TokenRow]:
    """Return a reply's tokens in order. The text that was scored may be cut into other tokens than were sampled: then only one of both is known."""
    texts, live = scored.get("tokens", []), scored.get("logprobs", [])
    found = scored.get("token_ids", [])
    if not ids:
        return [TokenRow(text, None, value) for text, value in zip(texts, live, strict=True)]
    same = list(ids[: len(found)]) == found
    return [
        TokenRow(
            texts[at] if same and at < len(texts) else f"#{token_id}",
            logprobs[at] if at < len(logprobs) else None,
            live[at] if same and at < len(live) else None,
        )
        for at, token_id in enumerate(ids)
    ]


async def steps(record: Record, viewer: Viewer, page: int, per_page: int) -> Json:
    """Return one page of the training steps, newest first; the page number is clamped."""
    count, page, read = await record.step_page(viewer.policy, page, per_page)
    found, damaged = sort_out(read, lambda one: f"Step {one.step_id}")
    pages = max(1, -(-count // per_page))
    samples = await record.step_samples(found, viewer.key_name)
    versions = {one.version: one for one in await record.adapters(viewer.policy)}
    backends = gateway_backends(await record.heartbeats()) if viewer.is_owner else []
    rows = []
    for step in found:
        adapter = versions.get(step.version or 0)
        loads = loads_of(backends, "" if adapter is None else adapter.name)
        rows.append(_step_row(step, adapter, samples[step.step_id], loads))
    return {
        "rows": rows,
        "damaged": damaged,
        "page": page,
        "pages": pages,
        "count": count,
        "per_page": per_page,
    }


def _step_row(
    step: StepReport, adapter: AdapterVersion | None, samples: Sequence[Json], loads: Sequence[Load]
) -> Json:
    state = adapter.state.value if adapter else "failed" if step.error else "running"
    total = None if step.finished_at is None else (step.finished_at - step.started_at) * 1e3
    distill = _figure(step.metrics.get("train_s"))
    times = [(about, seconds * 1e3) for about, seconds in phases(step.metrics)]
    times += [("load", load.seconds * 1e3) for load in loads[:1]]
    return {
        "step": step,
        "state": state,
        "phase": phase_of(step, adapter),
        "error": step.error or step.metrics.get("unreadable", ""),
        "batch": step.metrics.get("turns", len(samples)),
        "distill_ms": None if distill is None else distill * 1e3,
        "total_ms": total,
        "samples": samples,
        "metrics": step_metrics(step.metrics),
        "times": times if total is None else [*times, ("total", total)],
        "device": device_rows(step.metrics),
        "loads": loads,
    }


def device_rows(metrics: Json) -> list[tuple[str, float]] | None:
    """Return (what, how much) of what training and serving did to each other during a step; None: a step from before it was recorded."""
    device = metrics.get("device")
    if not isinstance(device, dict):
        return None
    return [
        (DEVICE.get(name) or str(name), value) for name, value in device.items() if _figure(value) is not None
    ]


@dataclass(frozen=True, slots=True)
class Load:
    """How a gateway's engine took a version: seconds, and the outcome of the comparison of its log-probabilities."""

    gateway: str
    seconds: float
    attested: str


def gateway_backends(beats: Sequence[Heartbeat]) -> list[tuple[str, Json]]:
    """Return (name, state of its backend) of each gateway."""
    return [
        (beat.process, beat.detail.get("backend") or {}) for beat in beats if beat.process.startswith("proxy")
    ]


def loads_of(backends: Sequence[tuple[str, Json]], name: str) -> list[Load]:
    """Return the newest load of a version by each gateway that still has it."""
    return [
        Load(gateway, state["load_s"][name], (state.get("attested") or {}).get(name, ""))
        for gateway, state in backends
        if name in (state.get("load_s") or {})
    ]


def phase_of(step: StepReport, adapter: AdapterVersion | None) -> str:
    """Return the phase that a step ended in: teacher, training, gate, or done."""
    if adapter is not None:
        return "gate" if adapter.state is AdapterState.REJECTED else "done"
    if step.error is None and step.finished_at is None:
        return "running"
    return step.metrics.get("phase") or "teacher"


def settings_rows(settings: Settings) -> list[tuple[str, str, str, str]]:
    """Return (name, value, what it is, from where); those that were given first. Secrets are blanked."""
    values, origins = to_json(settings), origins_of(settings)
    fields = type(settings).model_fields
    rows = [
        (name, _shown(value), fields[name].description or "", origins[name]) for name, value in values.items()
    ]
    return sorted(rows, key=lambda row: row[3] == DEFAULT_ORIGIN)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(one)}" for name, one in value.items())
    return "" if value is None else str(value)


def message_text(message: Json | None) -> str:
    """Return what a message says, in one string; tool calls as JSON."""
    if message is None:
        return ""
    text = content_text(message.get("content"))
    return text or (
        json.dumps(message["tool_calls"], ensure_ascii=False) if message.get("tool_calls") else ""
    )


async def live_versions(record: Record) -> dict[str, int | str]:
    """Return the live version of each policy that ever had one; "damaged" where its row is."""
    moves = await record.aliases()
    sound, _ = sort_out(moves.values(), lambda one: one.policy)
    return {policy: move.version if move in sound else "damaged" for policy, move in moves.items()}


async def heartbeats(record: Record) -> tuple[list[Heartbeat], list[str]]:
    """Return the newest heartbeat of each process, and a sentence about each that is damaged."""
    return sort_out(await record.heartbeats(), lambda one: f"The report of {one.process}")


def processes(beats: Sequence[Heartbeat], now: float) -> list[Json]:
    """Return the processes with their states; those of an earlier start with more workers are left out."""
    found = []
    for beat in beats:
        age = now - beat.at
        if age > SILENT_S and beat.process.startswith("proxy-"):
            continue
        found.append(
            {
                "beat": beat,
                "age_s": age,
                "is_alive": age < SILENT_S or is_running(beat, now),
                "details": details(beat.detail),
            }
        )
    return found


def details(detail: Json, prefix: str = "") -> list[tuple[str, str]]:
    """Return (name, value) of what a process reports and is not empty, nested names joined by dots."""
    found: list[tuple[str, str]] = []
    for name, value in detail.items():
        if isinstance(value, dict):
            found += details(value, f"{prefix}{name}.")
        elif value not in (None, "", 0, False, [], ()):
            found.append((prefix + name, f"{value:g}" if isinstance(value, float) else str(value)))
    return found


@dataclass(frozen=True, slots=True)
class Progress:
    """A training step that runs.

    Attributes:
        phase: what it does now, for `phase_s` seconds.
        typical: (phase, median seconds in the newest steps); []: it is the first step.
    """

    policy: str
    step_id: str
    started_at: float
    seconds: float
    phase: str
    phase_s: float
    typical: list[tuple[str, float]]

    @property
    def expected_s(self) -> float:
        return sum(seconds for _, seconds in self.typical)

    @property
    def share(self) -> float | None:
        """How much of the step is done, from 0 to 1, by the typical times; None: unknown."""
        if not self.expected_s:
            return None
        names = [name for name, _ in self.typical]
        if self.phase not in names:
            return min(1.0, self.seconds / self.expected_s)
        at = names.index(self.phase)
        done = sum(seconds for _, seconds in self.typical[:at]) + min(self.phase_s, self.typical[at][1])
        return done / self.expected_s


async def step_progress(record: Record, beats: Sequence[Heartbeat], now: float) -> Progress | None:
    """Return how far the step is that the trainer works on; None: it works on none."""
    beat = next((one for one in beats if one.process == "trainer" and now - one.at < SILENT_S), None)
    if beat is None or not (began := beat.detail.get("step_started_at")):
        return None
    policy = str(beat.detail.get("policy"))
    took: dict[str, list[float]] = {name: [] for name in PHASES}
    for step in await record.steps(policy, _STEPS_COMPARED):
        if step.version is not None:
            for name, seconds in phases(step.metrics):
                took.get(name, []).append(seconds)
    return Progress(
        policy=policy,
        step_id=str(beat.detail.get("step_id", "")),
        started_at=began,
        seconds=max(0.0, now - began),
        phase=str(beat.detail.get("phase", "")),
        phase_s=max(0.0, now - beat.detail.get("phase_started_at", now)),
        typical=[(name, statistics.median(some)) for name, some in took.items() if some],
    )


def work_now(beats: Sequence[Heartbeat], now: float) -> list[tuple[str, str]]:
    """Return (label, figure) of what runs now: requests, waiting journal entries, recorder, trainer and backend."""
    alive = [beat for beat in beats if now - beat.at < SILENT_S]
    gateways = [beat.detail for beat in alive if beat.process.startswith("proxy")]
    states = {beat.process: beat for beat in alive}
    recorder, trainer = states.get("recorder"), states.get("trainer")
    return [
        ("requests in flight", str(sum(detail.get("in_flight", 0) for detail in gateways))),
        ("requests since the start", str(sum(detail.get("requests", 0) for detail in gateways))),
        ("journal entries that wait", "–" if recorder is None else str(recorder.detail.get("lag_turns", 0))),
        ("recorder", "not running" if recorder is None else recorder.state),
        ("trainer", "not running" if trainer is None else trainer.state),
        ("backend", backend_state(gateways)),
    ]


def backend_state(gateways: Sequence[Json]) -> str:
    """Return what the gateways say of their backends."""
    ready = [bool((detail.get("backend") or {}).get("ready")) for detail in gateways]
    if not ready:
        return "unknown"
    return "ready" if all(ready) else "does not answer"
