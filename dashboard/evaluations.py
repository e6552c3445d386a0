"""Runs of `run.py eval` below a folder, as the page lists them."""

from __future__ import annotations

from pathlib import Path

import orjson

from store.values import Json

#: In the working directory of the start: where `run.py eval` writes.
FOLDER = "eval"
_RUNS = "runs.jsonl"
_MAX_BYTES = 32 << 20


def find_folder(given: str) -> Path | None:
    """Return the folder of evaluations, or one below it; None: ``given`` leads elsewhere."""
    root = Path(FOLDER).resolve()
    found = (root / given).resolve()
    return found if found.is_relative_to(root) else None


def list_runs(folder: Path, page: int, per_page: int) -> Json:
    """Return one page of the runs below a folder, newest first. An unreadable run is listed with its error."""
    found = sorted(
        (path for path in folder.rglob(_RUNS) if path.is_file()), key=lambda path: -path.stat().st_mtime
    )
    pages = max(1, -(-len(found) // per_page))
    page = min(max(page, 1), pages)
    shown = found[(page - 1) * per_page : page * per_page]
    return {
        "runs": [_read(folder, path) for path in shown],
        "page": page,
        "pages": pages,
        "count": len(found),
    }


def _read(folder: Path, path: Path) -> Json:
    run: Json = {
        "name": str(path.parent.relative_to(folder)) or ".",
        "at": path.stat().st_mtime,
        "rows": [],
        "error": "",
    }
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES >> 20} MB")
        run["rows"] = [_row(orjson.loads(line)) for line in path.read_bytes().splitlines() if line.strip()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        run["error"] = f"{type(exc).__name__}: {exc}"
    return run


def _row(row: Json) -> Json:
    points = row.get("points") or [{}]
    first, last = points[0], points[-1]
    return {
        "method": row.get("method", ""),
        "user": row.get("user", ""),
        "preferences": ", ".join(row.get("preferences", [])),
        "seed": row.get("seed"),
        "compliance": (first.get("compliance"), last.get("compliance")),
        "facts": (first.get("facts"), last.get("facts")),
        "interactions": last.get("interactions"),
        "versions": last.get("version"),
    }
