"""Runs of `run.py eval` below a folder, as the page shows them: a list with plots, and what happened in one case step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from dashboard.charts import Series, line_chart
from store.texts import strip_controls
from store.values import Json

#: In the working directory of the start: where `run.py eval` writes.
FOLDER = "eval"
#: What makes a folder a run: ours, and CLaaS's.
_CASES, _SUMMARY = "runs.jsonl", "summary.json"
_MAX_BYTES = 32 << 20
_MAX_PICTURES = 12
#: What the plots show of each measurement.
_PLOTS = {
    "compliance": "Replies that are as wished",
    "facts": "Facts that are right",
    "tools": "Tool calls that are right",
}
#: What a measurement and a version of a case hold, in plain words.
LABELS: dict[str, str] = {
    "interactions": "interactions before it",
    "version": "version that was live",
    "compliance": "replies that are as wished",
    "facts": "facts that are right",
    "tools": "tool calls that are right",
    "undone": "requests for the opposite that are obeyed",
    "again": "questions that name the wish: answered as wished, right and whole",
    "small_talk": "whole replies to thanks and greetings",
    "claims": "wrong corrections that are repeated",
    "margin": "log-probability of preferred less dispreferred answers, nats a token",
    "kl_to_base": "KL divergence from the base model, nats a token",
    "entropy": "entropy, nats a token",
    "surprise": "mean negative log-probability of sampled tokens",
    "ended": "replies that end",
    "tokens": "length of a reply, tokens",
    "distinct_1": "different words",
    "distinct_2": "different pairs of words",
    "self_rouge": "likeness of replies to different questions (ROUGE-L)",
    "questions": "questions that were asked",
    "loss": "loss before the step",
    "train_s": "seconds of training",
}
#: Series of one plot: more than these cannot be distinguished.
_MAX_SERIES = 6


def find_folder(given: str) -> Path | None:
    """Return the folder of evaluations, or one below it; None: ``given`` leads elsewhere, or is no path."""
    root = Path(FOLDER).resolve()
    try:
        found = (root / given).resolve()
        found.exists()
    except (OSError, ValueError):  # too long, or with a zero byte
        return None
    return found if found.is_relative_to(root) else None


def list_runs(folder: Path, page: int, per_page: int) -> Json:
    """Return one page of the runs below a folder, newest first. An unreadable run is listed with its error."""
    newest: dict[Path, float] = {}
    for name in (_CASES, _SUMMARY):
        for path in folder.rglob(name):
            if path.is_file():
                newest[path.parent] = max(newest.get(path.parent, 0.0), path.stat().st_mtime)
    found = sorted(newest, key=lambda one: (-newest[one], one))
    pages = max(1, -(-len(found) // per_page))
    page = min(max(page, 1), pages)
    shown = found[(page - 1) * per_page : page * per_page]
    return {
        "runs": [_read_run(folder, one) | {"at": newest[one]} for one in shown],
        "page": page,
        "pages": pages,
        "count": len(found),
    }


def find_picture(folder: Path, name: str) -> Path | None:
    """Return a picture of a run, by its path below the folder of evaluations; None: there is none."""
    try:
        path = (folder / name).resolve()
        is_ours = path.is_relative_to(folder) and path.suffix == ".png" and path.is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return None
    return path if is_ours else None


def read_case(folder: Path, run: str, number: int) -> Json | None:
    """Return one case of a run: its measurements in order, the messages before each, and the versions in between; None: there is none.

    Raises:
        ValueError: the run cannot be read.
    """
    if "\0" in run:
        return None
    path = (folder / run / _CASES).resolve()
    if not (path.is_relative_to(folder) and path.is_file()):
        return None
    cases = _cases(path)
    if not 0 <= number < len(cases):
        return None
    try:
        return {"run": run, "case": _summary(number, cases[number]), "steps": case_steps(cases[number])}
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"{run}: {type(exc).__name__}: {exc}") from exc


def case_steps(case: Json) -> list[Json]:
    """Return a case's measurements, the first (baseline) included: each with its change of the margin, the readings and versions since the one before."""
    found: list[Json] = []
    versions, readings = case.get("versions") or [], case.get("readings") or []
    times = case.get("measured_at") or []
    base = case["points"][0].get("margin")
    before: Json = {"interactions": 0, "version": 0}
    for number, point in enumerate(case["points"]):
        made = [one for one in versions if before["version"] < one["version"] <= point["version"]]
        margin = point.get("margin")
        found.append(
            {
                "number": number,
                "interactions": point["interactions"],
                "version": point["version"],
                "at": times[number] if number < len(times) else None,
                "margin": margin,
                "delta": margin - base if number and margin is not None and base is not None else None,
                "compliance": point.get("compliance"),
                "loss": next((one["loss"] for one in reversed(made) if one.get("loss") is not None), None),
                "train_s": sum(one.get("train_s") or 0.0 for one in made) if made else None,
                "measures": _numbers(point),
                "versions": [
                    {"version": one["version"], "state": one.get("state", ""), "reason": one.get("reason", ""), "metrics": _numbers(one)}
                    for one in made
                ],
                "readings": readings[before["interactions"] : point["interactions"]],
                "rollouts": point.get("samples") or [],
            }
        )  # fmt: skip
        before = point
    return found


def plots(
    cases: Sequence[Json],
) -> tuple[list[str], list[tuple[str, str, list[tuple[float, list[float | None]]]]]]:
    """Return the labels of the series, and (title, SVG, rows) of what the cases measured over their interactions.

    A row has the number of interactions and the value of each series there, None where it has none.

    Cases that differ by the seed alone are averaged.
    """
    groups: dict[str, list[Json]] = {}
    for case in cases:
        label = strip_controls(f"{', '.join(case.get('preferences', []))} ({case.get('method', '')})")
        groups.setdefault(label, []).append(case)
    shown = dict(list(groups.items())[:_MAX_SERIES])
    found = []
    for name, title in _PLOTS.items():
        series = [
            Series(label, _mean_curve([case["points"] for case in some], name))
            for label, some in shown.items()
        ]
        if chart := line_chart(series, title=title, x_title="interactions"):
            curves = [dict(one.points) for one in series]
            rows = [
                (at, [one.get(at) for one in curves]) for at in sorted({at for one in curves for at in one})
            ]
            found.append((title, chart, rows))
    return list(shown), found


def _mean_curve(curves: Sequence[Sequence[Json]], name: str) -> list[tuple[float, float]]:
    values: dict[float, list[float]] = {}
    for curve in curves:
        for point in curve:
            if (value := point.get(name)) is not None:
                values.setdefault(point["interactions"], []).append(value)
    return [(at, sum(some) / len(some)) for at, some in sorted(values.items())]


def _read_run(folder: Path, path: Path) -> Json:
    run: Json = {
        "name": str(path.relative_to(folder)),
        "cases": [], "legend": [], "plots": [], "pictures": [], "summary": "", "error": "",
    }  # fmt: skip
    try:
        pictures = sorted((*path.glob("plots/*.png"), *path.glob("*.png")))[:_MAX_PICTURES]
        run["pictures"] = [str(one.relative_to(folder)) for one in pictures]
        if (path / _CASES).is_file():
            cases = _cases(path / _CASES)
            run["cases"] = [_summary(number, case) for number, case in enumerate(cases)]
            run["legend"], run["plots"] = plots(cases)
        if (path / _SUMMARY).is_file():
            summary = orjson.loads(_read_small(path / _SUMMARY))
            run["summary"] = orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        run["error"] = f"{type(exc).__name__}: {exc}"
    return run


def _cases(path: Path) -> list[Json]:
    return [orjson.loads(line) for line in _read_small(path).splitlines() if line.strip()]


def _read_small(path: Path) -> bytes:
    """Return a file's bytes. Raises: ValueError: it is too large; OSError."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES >> 20} MB")
    return path.read_bytes()


def _summary(number: int, case: Json) -> Json:
    """Return what the list shows of a case: first and last measurement."""
    measured = case.get("points") or [{}]
    first, last = measured[0], measured[-1]
    margins = first.get("margin"), last.get("margin")
    return {
        "number": number,
        "method": case.get("method", ""),
        "user": case.get("user", ""),
        "preferences": ", ".join(case.get("preferences", [])),
        "seed": case.get("seed"),
        "margin_delta": None if None in margins else margins[1] - margins[0],
        "compliance": (first.get("compliance"), last.get("compliance")),
        "facts": (first.get("facts"), last.get("facts")),
        "tools": (first.get("tools"), last.get("tools")),
        "interactions": last.get("interactions"),
        "version": last.get("version"),
    }


def _numbers(values: Mapping[str, object]) -> list[tuple[str, str, float]]:
    """Return (name, what it is, value) of the numbers among the values."""
    return [
        (name, LABELS.get(name, name), value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
