"""Progress of the demo: a live picture on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evals.metrics import EvalMeasures
from evals.preferences import PREFERENCES
from evals.simulated_user import Interaction
from store.texts import clip

#: Interactions in the moving mean.
WINDOW = 8
_BARS = " ▁▂▃▄▅▆▇█"
_MEASURING = "measuring on unseen questions"


def moving_mean(values: list[float], window: int = WINDOW) -> list[float]:
    """Return at each position the mean of the last ``window`` values up to it."""
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means


def score(violated: Sequence[str], wants: Sequence[str]) -> float:
    """Return the share of preferences that a reply meets."""
    return 1.0 - len(violated) / len(wants)


class View:
    """Shows a run; an `evals.experiment.Observer`. Use as a context manager.

    Args:
        measure_every: interactions between two measurements.
        version: the version that is live at the start.
    """

    def __init__(
        self,
        preferences: tuple[str, ...],
        interactions: int,
        *,
        measure_every: int,
        version: int,
        console: Console,
    ) -> None:
        self._preferences = preferences
        self._planned = interactions
        self._measure_every = measure_every
        self._console = console
        self._live: Live | None = None
        self._phase = _MEASURING
        self._scores: list[float] = []
        self._last: Interaction | None = None
        self._version = version
        #: (interactions so far, version), each time another version was seen live.
        self.went_live: list[tuple[int, int]] = []
        self._measured: list[tuple[int, EvalMeasures]] = []
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self.picture(), console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.update(self.picture(), refresh=True)
            self._live.stop()
            self._live = None

    def interaction(self, count: int, interaction: Interaction, version: int) -> None:
        self._see_version(count - 1, version)
        self._scores.append(score(interaction.violated, interaction.wants))
        self._last = interaction
        if count == self._planned or count % self._measure_every == 0:
            self._phase = _MEASURING
        self._show(
            f"{count:3d}  v{version:<3d} score {self._scores[-1]:.2f} "
            f"(last {WINDOW}: {moving_mean(self._scores)[-1]:.2f})  {clip(interaction.reply, 60)!r} -> {interaction.words!r}"
        )

    def measured(self, count: int, version: int, measures: EvalMeasures) -> None:
        self._see_version(count, version)
        self._measured.append((count, measures))
        self._phase = "talking"
        opposite = "" if measures.undone is None else f", opposite obeyed {percent(measures.undone)}"
        self._show(
            f"     after {count} interactions, on {measures.questions} unseen questions: "
            f"{percent(measures.compliance)} as preferred, facts {percent(measures.facts)}{opposite}"
        )

    def _see_version(self, count: int, version: int) -> None:
        if version != self._version:
            self._version = version
            self.went_live.append((count, version))
            self._show(f"     version {version} is live after {count} interactions")

    def picture(self) -> RenderableType:
        """Return the whole live picture."""
        elapsed = time.monotonic() - self._started
        head = Text.assemble(
            ("a simulated user wants: ", "dim"),
            (wanted(self._preferences), "bold"),
            (f"   {len(self._scores)}/{self._planned} interactions   {elapsed:.0f} s   {self._phase}", "dim"),
        )
        bar = ProgressBar(total=max(1, self._planned), completed=len(self._scores), width=60)
        live = self._version
        parts: list[RenderableType] = [
            head,
            bar,
            self._curve(),
            self._table(),
            Text.assemble(
                ("live version ", "dim"),
                (str(live) if live else "0 (the base model)", "bold green" if live else "bold"),
                (f"   versions so far: {len(self.went_live)}", "dim"),
            ),
        ]
        if self._last is not None:
            parts.append(
                Text.assemble(
                    ("question ", "dim"),
                    f"{clip(self._last.task.text, 96)}\n",
                    ("reply    ", "dim"),
                    f"{clip(self._last.reply, 96)}\n",
                    ("reaction ", "dim"),
                    (clip(self._last.words, 96), "red" if self._last.violated else "green"),
                )
            )
        return Panel(Group(*parts), title="Patina demo", border_style="cyan")

    def _curve(self) -> Text:
        means = moving_mean(self._scores)
        bars = "".join(_BARS[round(mean * (len(_BARS) - 1))] for mean in means[-72:])
        now = f" {percent(means[-1])}" if means else " –"
        return Text.assemble(("preference score  ", "dim"), (bars, "cyan"), (now, "bold"))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("on unseen questions", style="dim")
        for index, (count, _) in enumerate(self._measured):
            table.add_column("before" if index == 0 else f"after {count}", justify="right")
        found = [measures for _, measures in self._measured]
        if len(self._preferences) > 1:
            for name in self._preferences:
                label = escape(PREFERENCES[name].label)
                table.add_row(label, *(percent(m.by_preference[name]) for m in found))
        table.add_row("as preferred", *(f"[bold]{percent(m.compliance)}[/]" for m in found))
        table.add_row("facts right", *(percent(m.facts) for m in found))
        table.add_row("opposite obeyed", *("" if m.undone is None else percent(m.undone) for m in found))
        return table

    def _show(self, line: str | None) -> None:
        if self._live is not None:
            self._live.update(self.picture())
        elif line is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def wanted(preferences: Sequence[str]) -> str:
    """Return the labels of preferences, separated by commas."""
    return ", ".join(PREFERENCES[name].label for name in preferences)


def percent(share: float) -> str:
    return f"{round(100 * share)} %"
