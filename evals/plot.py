"""The picture of a run as a file. The only place that draws; matplotlib is imported when it does."""

from __future__ import annotations

from pathlib import Path

from evals.loop import Run, score
from evals.users import LABELS
from evals.view import WINDOW, moving_mean
from store.errors import ConfigError

SUFFIXES = (".png", ".svg")


def check_output(path: Path) -> None:
    """Raises: ConfigError for a file that could not be written in the end, before minutes are spent on it."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--output {path}: the plot is a .png or .svg file")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.absolute().parent}")


def draw(run: Run, path: Path, *, title: str) -> None:
    """Draw score by interaction, what was measured, and the versions that went live.

    Raises:
        ConfigError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9.0, 5.6), dpi=120)
    try:
        scores = [score(i.judgement, run.preferences) for i in run.interactions]
        numbers = [i.judgement.interaction for i in run.interactions]
        for at, version in run.went_live:
            axes.axvline(at, color="0.88", linewidth=1, zorder=0)
            axes.annotate(
                f"v{version}", (at, 1.06), color="0.55", fontsize=6, ha="center", annotation_clip=False
            )
        axes.plot(numbers, scores, ".", color="tab:blue", alpha=0.25, markersize=5)
        axes.plot(
            numbers, moving_mean(scores), color="tab:blue", label=f"score of replies (mean of last {WINDOW})"
        )
        places = [c.interactions for c in run.checkpoints]
        found = [c.measurement for c in run.checkpoints]
        wanted = ", ".join(LABELS[name] for name in run.preferences)
        axes.plot(
            places,
            [m.compliance for m in found],
            "o-",
            color="tab:green",
            label=f"unseen questions: {wanted}",
        )
        axes.plot(
            places, [m.facts for m in found], "s--", color="tab:gray", label="unseen questions: facts right"
        )
        obeyed = [(c.interactions, c.measurement.opposite_obeyed) for c in run.checkpoints]
        pairs = [(at, value) for at, value in obeyed if value is not None]
        if pairs:
            axes.plot(*zip(*pairs, strict=True), "^:", color="tab:orange", label="opposite asked for: obeyed")
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("interactions")
        axes.set_ylabel("share")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=8, frameon=False)
        figure.suptitle(title, fontsize=9, wrap=True)
        figure.tight_layout()
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        pyplot.close(figure)
