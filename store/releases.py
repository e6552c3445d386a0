"""Canary releases in words: for `status`, `versions` and `why`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from store.texts import counted
from store.values import CanaryRelease, Json, ReleaseStage, adapter_name


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


def to_json(release: CanaryRelease) -> Json:
    """Return a release for `--json`."""
    return {**asdict(release), "sentence": sentence(release)}


def _complaints(release: CanaryRelease) -> str:
    if "found" not in release.numbers:
        return ""
    return f": complaints in {_counted(release.numbers['canary'])}, {_counted(release.numbers['baseline'])} of version {release.baseline_version}"


def _counted(arm: Json) -> str:
    return f"{arm['complaints']} of {counted(arm['judged'], 'judged turn')} of {counted(arm['conversations'], 'conversation')}"
