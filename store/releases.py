"""Canary releases in words: for `status`, `versions` and `why`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from store.texts import counted
from store.values import AdapterVersion, CanaryRelease, Json, ReleaseStage, adapter_name


def sentence(release: CanaryRelease) -> str:
    """Return where a release stands, in a line."""
    about = f": {release.reason}" if release.reason else ""
    match release.stage:
        case ReleaseStage.RUNNING:
            return f"on trial with {release.share:.0%} of the new conversations"
        case ReleaseStage.KEPT:
            return f"kept{about}"
        case ReleaseStage.ROLLED_BACK:
            return f"rolled back to version {release.baseline_version}{about}"
        case ReleaseStage.SUPERSEDED:
            return f"its comparison ended{about}"
        case ReleaseStage.DAMAGED:
            return f"its row is damaged{about}"


def status_lines(releases: Sequence[CanaryRelease]) -> Iterator[str]:
    """Yield a line for each release that is not over, with the counts of its complaints."""
    for release in releases:
        if release.stage is not ReleaseStage.RUNNING:
            continue
        yield f"{adapter_name(release.policy, release.version)}: {sentence(release)}{_complaints(release)}"


def number_lines(release: CanaryRelease) -> Iterator[str]:
    """Yield what the newest comparison counted, for `why`."""
    numbers = release.numbers
    if "found" not in numbers:
        yield numbers.get("unreadable", "nothing was counted yet")
        return
    other = f"{_counted(numbers['baseline'])} of version {release.baseline_version}"
    yield f"complaints in {_counted(numbers['canary'])}; in {other}"
    yield f"evidence that it is worse: {numbers['evidence']:.3g}; it is rolled back at {numbers['threshold']:g}"
    if (without := numbers["evidence_without_one_key"]) is not None:
        yield f"evidence without the key that adds most: {without:.3g}; it must reach {numbers['threshold_without']:g}"
    found = numbers["found"]
    yield (
        f"with so many conversations, a version with complaints in 50 % of the turns instead of 10 % is found in {found['from_10_to_50']:.0%} of such "
        f"trials, one with 25 % in {found['from_10_to_25']:.0%}; what is rarer or smaller stays unseen"
    )


def preview_lines(metrics: Json, release: CanaryRelease | None = None) -> Iterator[str]:
    """Yield what a preview of a version found on past questions, and how its prediction compares with what happened."""
    found = metrics.get("preview")
    if not isinstance(found, dict) or "unasked" not in found:
        return
    unasked = found["unasked"]
    yield (
        f"asked {counted(found['questions'], 'past question')} again: {unasked['new']:.0%} of the replies say what neither question nor wish asks for, "
        f"of the live version {unasked['live']:.0%}"
    )
    for name, one in found["traits"].items():
        low, high = one["difference"]["low"], one["difference"]["high"]
        if low > 0 or high < 0:
            shown = "{:.0f}" if name == "tokens" else "{:.0%}"
            values = ", ".join(f"{who} {shown.format(one[who])}" for who in ("live", "new", "teacher"))
            yield f"{TRAITS.get(name, name)}: {values}"
    if (predicted := found.get("complaints")) is not None:
        line = f"predicted complaints: {predicted['new']:.0%} of the judged turns, of the live version {predicted['live']:.0%}"
        arm = {} if release is None else release.numbers.get("canary") or {}
        if arm.get("judged"):
            line += f"; happened: {arm['complaints'] / arm['judged']:.0%} of {arm['judged']}"
        yield line


#: Traits of replies, in words.
TRAITS = {
    "tokens": "tokens of a reply",
    "empty": "empty replies",
    "ends": "replies that end within the limit",
    "asks": "replies that end with a question",
    "refuses": "replies that refuse",
    "formatted": "replies with lists, code or bold",
    "other_writing": "replies in another writing than the question",
    "follows": "replies that follow the wishes",
    "calls": "valid tool calls",
}


def prediction_errors(
    versions: Sequence[AdapterVersion], releases: Sequence[CanaryRelease]
) -> list[tuple[float, float, int]]:
    """Return (predicted share of complaints, what happened, judged turns) of each version that was previewed and tried."""
    numbers = {one.version: one.numbers.get("canary") or {} for one in releases}
    found = []
    for one in versions:
        predicted = (one.metrics.get("preview") or {}).get("complaints")
        arm = numbers.get(one.version, {})
        if predicted and arm.get("judged"):
            found.append((predicted["new"], arm["complaints"] / arm["judged"], arm["judged"]))
    return found


def calibration_line(errors: Sequence[tuple[float, float, int]]) -> str:
    """Return how far predictions were from what happened, each weighted by its judged turns; "" where there are none."""
    judged = sum(count for _, _, count in errors)
    if not judged:
        return ""
    off = sum(abs(predicted - happened) * count for predicted, happened, count in errors) / judged
    mean = [sum(one[i] * one[2] for one in errors) / judged for i in (0, 1)]
    return (
        f"predictions so far: {counted(len(errors), 'version')}, {mean[0]:.0%} predicted and {mean[1]:.0%} happened; "
        f"{100 * off:.0f} points off on average"
    )


def to_json(release: CanaryRelease) -> Json:
    """Return a release for `--json`."""
    return {**asdict(release), "sentence": sentence(release)}


def _complaints(release: CanaryRelease) -> str:
    if "found" not in release.numbers:
        return ""
    return f": complaints in {_counted(release.numbers['canary'])}, {_counted(release.numbers['baseline'])} of version {release.baseline_version}"


def _counted(arm: Json) -> str:
    return f"{arm['complaints']} of {counted(arm['judged'], 'judged turn')} of {counted(arm['conversations'], 'conversation')}"
