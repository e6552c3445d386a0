"""Canary releases in words: for `status`, `versions` and `why`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from store.values import CanaryRelease, Json, ReleaseStage, adapter_name

_RATES = {
    "complaints": ("complaints", "judged turns"),
    "faulty": ("empty or cut replies", "replies"),
    "retries": ("repeated prompts", "followed turns"),
}


def sentence(release: CanaryRelease) -> str:
    """Return where a release stands, in a line."""
    about = f": {release.reason}" if release.reason else ""
    match release.stage:
        case ReleaseStage.RUNNING:
            return f"on trial with {release.share:.0%} of the new conversations"
        case ReleaseStage.WATCHED:
            return f"live and still compared with version {release.baseline_version}{about}"
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
        if release.stage not in (ReleaseStage.RUNNING, ReleaseStage.WATCHED):
            continue
        yield f"{adapter_name(release.policy, release.version)}: {sentence(release)}{_complaints(release)}"


def number_lines(release: CanaryRelease) -> Iterator[str]:
    """Yield what the newest comparison counted, for `why`."""
    numbers = release.numbers
    if "canary" not in numbers:
        yield numbers.get("unreadable", "nothing was counted yet")
        return
    for name, (what, of) in _RATES.items():
        pairs = (
            f"{_counted(numbers['canary'], name)} {of}",
            f"{_counted(numbers['baseline'], name)} of version",
        )
        yield f"{what} in {pairs[0]}, in {pairs[1]} {release.baseline_version}"
    yield f"evidence that it is worse: {numbers['evidence']:.3g}; it is rolled back at {numbers['threshold']:g}"


def to_json(release: CanaryRelease) -> Json:
    """Return a release for `--json`."""
    return {
        "version": release.version,
        "baseline_version": release.baseline_version,
        "share": release.share,
        "stage": release.stage.value,
        "started_at": release.started_at,
        "stage_since": release.stage_since,
        "reason": release.reason,
        "sentence": sentence(release),
        "numbers": release.numbers,
    }


def _complaints(release: CanaryRelease) -> str:
    if "canary" not in release.numbers:
        return ""
    mine = _counted(release.numbers["canary"], "complaints")
    other = _counted(release.numbers["baseline"], "complaints")
    return f"; complaints in {mine} judged turns, {other} of version {release.baseline_version}"


def _counted(arm: Json, name: str) -> str:
    events, trials = arm[name]
    return f"{events} of {trials}"
