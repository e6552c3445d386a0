"""The Grafana board against the types of Grafana's own package: names, nesting and values of its fields."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from store.settings import REPOSITORY
from tests.clients.packages import npm

BOARD: dict[str, Any] = json.loads((REPOSITORY / "deploy" / "grafana-dashboard.json").read_text("utf-8"))
PACKAGES = ("@grafana/schema@13.2.3", "typescript@7.0.2")
_TYPES = """\
import type { Dashboard, DataQuery, Panel } from '@grafana/schema';
import type { Options as Stat } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { FieldConfig, Options as TimeSeries } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
type Query = { targets: Array<DataQuery & { expr: string; legendFormat: string }> };
type Shown =
  | (Omit<Panel<Partial<Stat>>, 'type' | 'targets'> & Query & { type: 'stat' })
  | (Omit<Panel<Partial<TimeSeries>, FieldConfig>, 'type' | 'targets'> & Query & { type: 'timeseries' });
export type Board = Omit<Dashboard, 'panels'> & { panels: Shown[] };
"""


def errors_of(boards: dict[str, Any], folder: Path) -> set[str]:
    """Return the names of the boards in which TypeScript finds an error."""
    packages = npm(*PACKAGES) / "node_modules"
    (folder / "node_modules").symlink_to(packages)
    (folder / "types.ts").write_text(_TYPES)
    for name, board in boards.items():
        text = f"import type {{ Board }} from './types';\nexport const board: Board = {json.dumps(board)};\n"
        (folder / f"{name}.ts").write_text(text)
    names = [f"{name}.ts" for name in ("types", *boards)]
    done = subprocess.run(
        ["node", packages / "typescript" / "bin" / "tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "preserve", *names],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {line.partition(".ts(")[0] for line in done.stdout.splitlines() if ".ts(" in line}
    assert bool(found) == bool(done.returncode), done.stdout + done.stderr
    return found


@pytest.mark.clients
def test_grafanas_types_accept_the_board_and_no_damaged_one(tmp_path: Path) -> None:
    damaged = {name: copy.deepcopy(BOARD) for name in ("no_place", "unknown_field", "no_query", "no_unit")}
    del damaged["no_place"]["panels"][0]["gridPos"]["w"]
    damaged["unknown_field"]["panels"][0]["heading"] = "Live version"
    del damaged["no_query"]["panels"][0]["targets"][0]["expr"]
    damaged["no_unit"]["panels"][0]["fieldConfig"]["defaults"]["unit"] = 1
    assert errors_of({"board": BOARD, **damaged}, tmp_path) == set(damaged)


def test_panels_have_places_and_ids_of_their_own() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24  # the width of Grafana's grid
