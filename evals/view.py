"""What the person at the terminal sees of a run: a live picture on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evals.loop import Checkpoint, Interaction, score
from evals.users import LABELS

#: Interactions in the moving mean.
WINDOW = 8
_BARS = " ▁▂▃▄▅▆▇█"


def moving_mean(values: list[float], window: int = WINDOW) -> list[float]:
    """Return at each place the mean of the last ``window`` values up to it."""
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means


class View:
    """Shows a run. Use as a context manager around it; it is an `evals.loop.Observer`."""

    def __init__(self, preferences: tuple[str, ...], interactions: int, *, console: Console) -> None:
        self._preferences = preferences
        self._planned = interactions
        self._console = console
        self._live: Live | None = None
        self._phase = "starting"
        self._scores: list[float] = []
        self._last: Interaction | None = None
        self._versions: list[tuple[int, int]] = []
        self._checkpoints: list[Checkpoint] = []
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self.picture(), console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.update(self.picture(), refresh=True)
            self._live.stop()
            self._live = None

    def phase(self, text: str) -> None:
        self._phase = text
        self._show(None)

    def interaction(self, interaction: Interaction) -> None:
        judgement = interaction.judgement
        self._scores.append(score(judgement, self._preferences))
        self._last = interaction
        self._show(
            f"{judgement.interaction:3d}  v{interaction.version:<3d} score {self._scores[-1]:.2f} "
            f"(last {WINDOW}: {moving_mean(self._scores)[-1]:.2f})  {_clip(judgement.reply, 60)!r} -> {judgement.words!r}"
        )

    def version(self, interactions: int, version: int) -> None:
        self._versions.append((interactions, version))
        self._show(f"     version {version} is live after {interactions} interactions")

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self._checkpoints.append(checkpoint)
        found = checkpoint.measurement
        opposite = (
            "" if found.opposite_obeyed is None else f", opposite obeyed {_percent(found.opposite_obeyed)}"
        )
        self._show(
            f"     after {checkpoint.interactions} interactions, on {found.questions} unseen questions: "
            f"{_percent(found.compliance)} as preferred, facts {_percent(found.facts)}{opposite} ({found.seconds:.0f} s)"
        )

    def picture(self) -> RenderableType:
        """Return the whole live picture."""
        wanted = ", ".join(LABELS[name] for name in self._preferences)
        elapsed = time.monotonic() - self._started
        head = Text.assemble(
            ("a simulated user wants: ", "dim"),
            (wanted, "bold"),
            (f"   {len(self._scores)}/{self._planned} interactions   {elapsed:.0f} s   {self._phase}", "dim"),
        )
        bar = ProgressBar(total=max(1, self._planned), completed=len(self._scores), width=60)
        parts: list[RenderableType] = [head, bar, self._curve(), self._measured()]
        live = self._versions[-1][1] if self._versions else 0
        parts.append(
            Text.assemble(
                ("live version ", "dim"),
                (str(live) if live else "0 (the bare model)", "bold green" if live else "bold"),
                (f"   versions so far: {len(self._versions)}", "dim"),
            )
        )
        if self._last is not None:
            judgement = self._last.judgement
            colour = "green" if judgement.is_satisfied else "red"
            parts.append(
                Text.assemble(
                    ("asked    ", "dim"),
                    f"{_clip(judgement.question.text)}\n",
                    ("answered ", "dim"),
                    f"{_clip(judgement.reply)}\n",
                    ("said     ", "dim"),
                    (_clip(judgement.words), colour),
                )
            )
        return Panel(Group(*parts), title="Patina demo", border_style="cyan")

    def _curve(self) -> Text:
        means = moving_mean(self._scores)
        bars = "".join(_BARS[round(mean * (len(_BARS) - 1))] for mean in means[-72:])
        now = f" {_percent(means[-1])}" if means else " –"
        return Text.assemble(("preference score  ", "dim"), (bars, "cyan"), (now, "bold"))

    def _measured(self) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("on unseen questions", style="dim")
        for index, checkpoint in enumerate(self._checkpoints):
            table.add_column("before" if index == 0 else f"after {checkpoint.interactions}", justify="right")
        found = [checkpoint.measurement for checkpoint in self._checkpoints]
        if len(self._preferences) > 1:
            for name in self._preferences:
                table.add_row(escape(LABELS[name]), *(_percent(m.by_preference[name]) for m in found))
        table.add_row("as preferred", *(f"[bold]{_percent(m.compliance)}[/]" for m in found))
        table.add_row("facts right", *(_percent(m.facts) for m in found))
        table.add_row(
            "opposite obeyed",
            *("" if m.opposite_obeyed is None else _percent(m.opposite_obeyed) for m in found),
        )
        return table

    def _show(self, line: str | None) -> None:
        if self._live is not None:
            self._live.update(self.picture())
        elif line is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"


def _clip(text: str, length: int = 96) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"
