"""Runs as one page that opens anywhere without a network, and as Markdown, CSV and PNG. And two folders of runs compared."""

from __future__ import annotations

import csv
import html
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.evals.curves import draw_curves
from lab.evals.experiment import read_runs
from lab.evals.methods import METHODS
from lab.evals.metrics import interval, mean
from lab.evals.preferences import PREFERENCES
from lab.evals.simulated_user import scenario
from store.errors import ConfigError
from store.texts import three_digits
from store.values import Json

Group = tuple[str, tuple[str, ...], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A number of a run. `is_gain`: after less before. `digits` after the point."""

    name: str
    about: str
    read: Callable[[Json], float | None]
    digits: int = 2


def _after(name: str) -> Callable[[Json], float | None]:
    return lambda row: row["points"][-1].get(name)


def _change(name: str) -> Callable[[Json], float | None]:
    def read(row: Json) -> float | None:
        before, after = row["points"][0].get(name), row["points"][-1].get(name)
        return None if before is None or after is None else float(after - before)

    return read


def _cost(name: str) -> Callable[[Json], float | None]:
    return lambda row: float(row["cost"][name])


def _scope(row: Json) -> float | None:
    """The mean over the forms that the model could do at all."""
    before, after = row["points"][0].get("scope") or {}, row["points"][-1].get("scope") or {}
    gaps = [after[form] - share for form, share in before.items() if share > 0]
    return mean(gaps) if gaps else None


def _unrelated(name: str) -> Callable[[Json], float | None]:
    return lambda row: (row.get("unrelated_points") or {}).get(name)


def _unrelated_third(index: int) -> Callable[[Json], float | None]:
    def read(row: Json) -> float | None:
        after = list((row.get("unrelated_points") or {}).get("after", {}).values())
        return after[index] if index < len(after) - 1 else None

    return read


COLUMNS = (
    Column(name="before", about="compliance before: replies to unseen questions that meet every wish, though none asked for it",
           read=lambda row: row["points"][0]["compliance"]),
    Column(name="after", about="the same after the last interaction (of memory: with its prompt)", read=_after("compliance")),
    Column(name="taken away", about="compliance once the memory's prompt is taken away",
           read=lambda row: row["without_memory"]["compliance"] if row["without_memory"] else None),
    Column(name="until 3", about="interactions until three conversations in a row had nothing to complain about",
           read=lambda row: row["until_satisfied"], digits=0),
    Column(name="facts", about="change of the share of right answers to unseen questions", read=_change("facts")),
    Column(name="tools", about="change of the share of exactly right tool calls", read=_change("tools")),
    Column(name="opposite", about="an explicit request for the opposite is obeyed, at the end", read=_after("undone")),
    Column(name="opposite ±", about="the same less what it was before", read=_change("undone")),
    Column(name="retention", about="of earlier wishes, what is left after later ones came", read=lambda row: row["retention"]),
    Column(name="held", about="of the wishes of the end, how often the one that is met least is met",
           read=lambda row: min((row.get("held") or {}).values(), default=None)),
    Column(name="withdrawn ±", about="how much more often a withdrawn wish is still met than before",
           read=lambda row: max((row.get("withdrawn") or {}).values(), default=None)),
    Column(name="taught", about="compliance before the unrelated conversations", read=_unrelated("taught")),
    Column(name="⅓ on", about="compliance after a third of the unrelated conversations", read=_unrelated_third(0)),
    Column(name="⅔ on", about="compliance after two thirds of them", read=_unrelated_third(1)),
    Column(name="kept", about="compliance after all of them, over that before them, at most 1", read=_unrelated("kept")),
    Column(name="again", about="questions that name a wish: it is met, the fact right and the reply whole, at the end",
           read=_after("again")),
    Column(name="again ±", about="the same less what it was before", read=_change("again")),
    Column(name="elsewhere", about="compliance below system prompts that the user never had, at the end", read=_after("elsewhere")),
    Column(name="scope", about="change of whole answers to requests for JSON, a list or code, of what the model could do at all",
           read=_scope),
    Column(name="small talk", about="whole replies to thanks and greetings, at the end", read=_after("small_talk")),
    Column(name="follow-ups", about="right, whole replies to doubt and questions about an answer, at the end", read=_after("follow_ups")),
    Column(name="small talk ±", about="the same less what it was before", read=_change("small_talk")),
    Column(name="claims", about="wrong answers of a user's wrong corrections that are given to the same question, at the end",
           read=_after("claims")),
    Column(name="margin", about="change of log-probability of preferred less dispreferred answers, nats a token", read=_change("margin")),
    Column(name="KL", about="KL to the base model, nats a token (a stack: as its trainer reports it)", read=_after("kl_to_base"), digits=3),
    Column(name="surprise", about="change of the mean -log-probability of sampled tokens", read=_change("surprise")),
    Column(name="length", about="mean length of a reply at the end, tokens", read=_after("tokens"), digits=0),
    Column(name="self-ROUGE", about="change of the mean ROUGE-L between replies to different questions", read=_change("self_rouge")),
    Column(name="distinct-2", about="change of the share of different word pairs", read=_change("distinct_2")),
    Column(name="ended", about="replies ended by the policy itself, at the end", read=_after("ended")),
    Column(name="tokens", about="tokens of the conversations, prompts included", digits=0,
           read=lambda row: float(row["cost"]["prompt_tokens"] + row["cost"]["completion_tokens"])),
    Column(name="context", about="tokens a memory adds to every prompt", read=_cost("context_tokens"), digits=0),
    Column(name="steps", about="optimizer steps (a stack: versions made)", read=_cost("steps"), digits=0),
    Column(name="train s", about="seconds of training", read=_cost("training_s"), digits=0),
    Column(name="wall s", about="seconds in all, measuring included", read=lambda row: row["wall_s"], digits=0),
)  # fmt: skip
#: Those of the table on the terminal and in Markdown.
_BRIEF = (
    "before",
    "after",
    "taken away",
    "until 3",
    "facts",
    "opposite",
    "retention",
    "held",
    "withdrawn ±",
    "taught",
    "kept",
    "KL",
    "context",
    "steps",
)
#: What the page's first table calls its columns; all others are folded away below it.
_IN_WORDS = {
    "before": "as wished, before",
    "after": "as wished, after",
    "taken away": "as wished, memory taken away",
    "until 3": "replies read until 3 conversations in a row pleased",
    "facts": "facts right, change",
    "tools": "tool calls right, change",
    "opposite": "asked for the opposite: obeys",
    "retention": "earlier wishes kept",
    "held": "wishes held in the end: the least met one",
    "withdrawn ±": "withdrawn wish still met, over before",
    "taught": "as wished, before unrelated conversations",
    "kept": "of that kept after them",
    "again": "wish named in the question: met, right and whole",
    "elsewhere": "as wished, below other system prompts",
    "scope": "whole JSON, lists and code, change",
    "small talk": "small talk whole",
    "claims": "wrong corrections adopted",
    "context": "tokens added to every prompt",
    "wall s": "seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number over seeds. `low`, `high`: its 95 % interval, infinite for one seed; `missing`: runs that have no such number."""

    mean: float
    low: float
    high: float
    count: int
    missing: int

    def text(self, digits: int) -> str:
        if not self.count:
            return "–"
        text = f"{self.mean:z.{digits}f}"
        if math.isfinite(self.low):
            text += f" ± {self.high - self.mean:.{digits}f}"
        return text + (f" ({self.count} of {self.count + self.missing})" if self.missing else "")


def cell(column: Column, rows: Sequence[Json]) -> Cell:
    values = [column.read(row) for row in rows]
    known = [float(value) for value in values if value is not None]
    low, high = interval(known)
    return Cell(mean=mean(known), low=low, high=high, count=len(known), missing=len(values) - len(known))


def grouped(rows: Sequence[Json]) -> dict[Group, dict[str, list[Json]]]:
    """Return the runs by what they have in common (user, preferences, interactions), then by method in a fixed order."""
    groups: dict[Group, list[Json]] = defaultdict(list)
    order = list(METHODS)
    for row in sorted(rows, key=lambda row: (order.index(row["method"]), row["seed"])):
        groups[row["user"], tuple(row["preferences"]), int(row["interactions"])].append(row)
    return {group: _by_label(some) for group, some in groups.items()}


def _by_label(rows: Sequence[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = defaultdict(list)
    differing = [name for name in ("tabs", "unrelated") if len({row.get(name, 0) for row in rows}) > 1]
    for row in rows:
        found[_label(row, differing)].append(row)
    return dict(found)


def _label(row: Json, names: Sequence[str] = ()) -> str:
    settings = {**row["overrides"], **{name: row.get(name, 0) for name in names}}
    changed = ",".join(f"{name}={value}" for name, value in settings.items())
    return f"{row['method']} ({changed})" if changed else str(row["method"])


def title(group: Group) -> str:
    user, wants, interactions = group
    labels = " and ".join(PREFERENCES[name].label for name in wants)
    return f"{user.replace('_', ' ').capitalize()} user who wants {labels}, {interactions} interactions"


def write_report(folder: Path, rows: Sequence[Json]) -> None:
    """Write report.html, report.md, runs.csv, curves.csv and curves.png.

    Raises:
        ConfigError: a file cannot be written.
    """
    groups = grouped(rows)
    figures = {group: draw_curves(methods, title(group)) for group, methods in groups.items()}
    files: dict[str, str | bytes] = {
        "report.html": _page(groups, {group: figure.svg for group, figure in figures.items()}),
        "report.md": _markdown(groups),
        "runs.csv": _runs_csv(rows),
        "curves.csv": _curves_csv(rows),
    }
    for number, figure in enumerate(figures.values(), 1):
        files["curves.png" if number == 1 else f"curves-{number}.png"] = figure.png
    for name, content in files.items():
        try:
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            else:
                (folder / name).write_text(content, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {folder / name}: {error.strerror or error}") from error


def print_summary(rows: Sequence[Json], console: Console) -> None:
    """Print a table for each kind of user."""
    for group, methods in grouped(rows).items():
        columns = [column for column in _brief() if _has_values(column, methods)]
        table = Table("method", "seeds", *(column.name for column in columns), title=title(group))
        table.columns[0].no_wrap = True
        for name, some in methods.items():
            table.add_row(name, str(len(some)), *(cell(c, some).text(c.digits) for c in columns))
        console.print(table)


def _brief() -> Iterator[Column]:
    return (column for column in COLUMNS if column.name in _BRIEF)


def _markdown(groups: Mapping[Group, Mapping[str, Sequence[Json]]]) -> str:
    lines = ["# Does it learn?", "", "Mean over seeds ± half of the 95 % interval (Student's t)."]
    for group, methods in groups.items():
        columns = [column for column in _brief() if _has_values(column, methods)]
        lines += ["", f"## {title(group)}", "", f"| method | seeds | {' | '.join(c.name for c in columns)} |"]
        lines.append("|---" * (len(columns) + 2) + "|")
        for name, some in methods.items():
            cells = [cell(column, some).text(column.digits) for column in columns]
            lines.append(f"| {name} | {len(some)} | " + " | ".join(cells) + " |")
    lines += ["", *(f"- {column.name}: {column.about}" for column in _brief())]
    return "\n".join(lines) + "\n"


def _runs_csv(rows: Sequence[Json]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["method", "user", "preferences", "seed", "tabs", *(column.name for column in COLUMNS)])
    for row in rows:
        writer.writerow(
            [_label(row), row["user"], " ".join(row["preferences"]), row["seed"], row["tabs"], *(column.read(row) for column in COLUMNS)]
        )  # fmt: skip
    return out.getvalue()


def _curves_csv(rows: Sequence[Json]) -> str:
    names = ["interactions", "version", "compliance", "facts", "tools", "undone", "kl_to_base", "entropy", "surprise",
             "margin", "tokens", "ended", "distinct_1", "distinct_2", "self_rouge"]  # fmt: skip
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["method", "user", "preferences", "seed", "tabs", *names])
    for row in rows:
        for point in row["points"]:
            start = [_label(row), row["user"], " ".join(row["preferences"]), row["seed"], row["tabs"]]
            writer.writerow([*start, *(point[name] for name in names)])
    return out.getvalue()


# ------------------------------------------------------------------ the page

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--good:#2a7d3f;--bad:#b3372f}
body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{line-height:1.15}h2{margin-top:3rem;border-top:1px solid var(--line);padding-top:1rem}
table{border-collapse:collapse;font-size:.82rem;width:100%}.wide{overflow-x:auto}
th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}thead th{vertical-align:bottom}tr.ours td:first-child{font-weight:600}
td.text,th.text{text-align:left;white-space:normal;min-width:14rem}thead th{white-space:normal;max-width:9rem}
.result{border-left:.3rem solid var(--good);padding-left:.8rem;font-weight:600}
figure{margin:1rem 0;background:#fff;border-radius:.5rem;padding:.5rem}figure svg{width:100%;height:auto}
.lead{font-size:1.15rem}.missed{color:var(--bad)}.fine{color:var(--good)}small,.note{opacity:.75}
details{margin:.6rem 0;background:var(--soft);border-radius:.4rem;padding:.4rem .8rem}summary{cursor:pointer}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;font-size:.9rem}dt{font-weight:600}dd{margin:0}
"""


def _page(groups: Mapping[Group, Mapping[str, Sequence[Json]]], figures: Mapping[Group, str]) -> str:
    parts = [_section(group, methods, figures[group]) for group, methods in groups.items()]
    columns = "".join(f"<dt>{_e(c.name)}</dt><dd>{_e(c.about)}</dd>" for c in COLUMNS)
    about = "".join(
        f"<dt>{_e(name)}</dt><dd>{_e(METHODS[name].about)}</dd>"
        for name in METHODS
        if any(
            row["method"] == name for methods in groups.values() for rows in methods.values() for row in rows
        )
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Does it learn?</title><style>{_STYLE}</style></head><body>
<h1>Does it learn?</h1>
<p class="lead">A simulated user chats and complains in plain words, without further explanation. Measured is how replies to
<em>other questions, which no user asked</em>, change, and what it costs.</p>
<p>Good is: the solid line on the left climbs early, the one on the right stays where it is, and someone who explicitly asks for the
opposite still gets it. <em>none</em> learns nothing and has to stay flat; <em>memory</em> puts earlier complaints in front of every
prompt instead of learning, and falls back once they are taken away; dashed lines are other systems' ways to learn.</p>
{"".join(parts)}
<h2>How to read this</h2>
<p>An <em>interaction</em> is one reply that the user reads. <em>Compliance</em> is judged by fixed rules, not by a model and
not by what scores the feedback. Numbers are means over seeds ± half of the 95 % interval (Student's t); bands show the same. One
seed alone has no interval. A number in parentheses says how many runs have it at all.</p>
<h3>Methods</h3><dl>{about}</dl>
<h3>Columns</h3><dl>{columns}</dl>
</body></html>
"""


def _table(columns: Mapping[str, Column], methods: Mapping[str, Sequence[Json]]) -> str:
    """``columns`` by the words above them, with a row for each method."""
    head = "".join(f'<th title="{_e(c.about)}">{_e(words)}</th>' for words, c in columns.items())
    body = []
    for name, rows in methods.items():
        method = METHODS[rows[0]["method"]]
        cells = "".join(f"<td>{_e(cell(c, rows).text(c.digits))}</td>" for c in columns.values())
        ours = ' class="ours"' if method.name == "combine" else ""
        body.append(
            f'<tr{ours}><td title="{_e(method.about)}">{_e(name)}</td><td>{len(rows)}</td>{cells}</tr>'
        )
    return (
        f'<div class="wide"><table><thead><tr><th>method</th><th>seeds</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _section(group: Group, methods: Mapping[str, Sequence[Json]], figure: str) -> str:
    shown = [c for c in COLUMNS if _has_values(c, methods)]
    brief = {_IN_WORDS[c.name]: c for c in shown if c.name in _IN_WORDS}
    every = {c.name: c for c in shown}
    return f"""<h2>{_e(title(group))}</h2>
<p>This user: {_e(scenario(group[0], group[1]).about)}.</p>
<p class="result">{_e(headline(methods))}</p>
<figure>{figure}</figure>
{_table(brief, methods)}
<p class="note">Shares lie between 0 and 1. Point at a name or a heading for what it means.</p>
<details><summary>All measurements</summary>{_table(every, methods)}</details>
<h3>Before and after, to the same questions</h3>{_samples(methods)}
<h3>Conversations</h3>{"".join(_talk(name, rows[0]) for name, rows in methods.items())}
<h3>Every version, and why it was made</h3>{"".join(_versions(name, rows[0]) for name, rows in methods.items())}
"""


def headline(methods: Mapping[str, Sequence[Json]]) -> str:
    """Return the result in a sentence or two, computed."""
    after = {name: mean([row["points"][-1]["compliance"] for row in rows]) for name, rows in methods.items()}
    learning = {
        name: value for name, value in after.items() if METHODS[methods[name][0]["method"]].kind == "learn"
    }
    sentences = []
    if learning:
        best = max(learning, key=lambda name: learning[name])
        rows = methods[best]
        before = mean([row["points"][0]["compliance"] for row in rows])
        facts = mean([row["points"][-1]["facts"] - row["points"][0]["facts"] for row in rows])
        sentences.append(
            f"Best of those that learn: {best}, from {before:.0%} to {learning[best]:.0%} of unseen questions, "
            f"facts {100 * facts:+z.0f} points."
        )
    for name, rows in methods.items():
        if METHODS[rows[0]["method"]].kind == "none":
            sentences.append(f"Without learning: {after[name]:.0%}.")
        bare = [row["without_memory"]["compliance"] for row in rows if row["without_memory"]]
        if bare:
            sentences.append(
                f"A prompt memory reaches {after[name]:.0%}, and {mean(bare):.0%} once it is taken away."
            )
        late = sum(row["late_pauses"] for row in rows)
        if late:
            sentences.append(f"{name}: {late} pauses ended before all feedback was trained.")
    return " ".join(sentences)


def _has_values(column: Column, methods: Mapping[str, Sequence[Json]]) -> bool:
    return any(column.read(row) is not None for rows in methods.values() for row in rows)


def _samples(methods: Mapping[str, Sequence[Json]]) -> str:
    parts = []
    for name, rows in methods.items():
        pairs = zip(rows[0]["points"][0]["samples"], rows[0]["points"][-1]["samples"], strict=True)
        lines = "".join(
            f'<tr><td class="text">{_e(asked)}</td><td class="text">{_e(before)}</td><td class="text">{_e(after)}</td></tr>'
            for (asked, before), (_, after) in pairs
        )
        opened = " open" if rows[0]["method"] == "combine" else ""
        parts.append(
            f"<details{opened}><summary>{_e(name)}</summary><div class='wide'><table><thead><tr><th>asked</th>"
            f'<th class="text">before</th><th class="text">after</th></tr></thead><tbody>{lines}</tbody></table></div></details>'
        )
    return "".join(parts)


def _talk(name: str, row: Json) -> str:
    lines = "".join(
        f'<tr><td>{number}</td><td>{interaction["version"]}</td><td class="text">{_e(interaction["question"])}</td>'
        f'<td class="text">{_e(interaction["reply"])}</td>'
        f'<td class="text {"missed" if interaction["violated"] else "fine"}">{_e(interaction["words"] or "(no reaction)")}</td></tr>'
        for number, interaction in enumerate(row["readings"], 1)
    )
    return (
        f"<details><summary>{_e(name)}, seed {row['seed']}: {len(row['readings'])} interactions</summary><div class='wide'><table>"
        "<thead><tr><th>#</th><th>version</th>"
        '<th class="text">question</th><th class="text">reply</th><th class="text">reaction</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div></details>"
    )


def _versions(name: str, row: Json) -> str:
    if not row["versions"]:
        return ""
    lines = "".join(
        f'<tr><td>{v["version"]}</td><td>{_e(v["state"])}</td><td class="text">{_e(v["reason"])}</td>'
        + "".join(
            f"<td>{three_digits(v.get(key))}</td>" for key in ("turns", "loss", "kl_to_base", "learning_rate")
        )
        + "</tr>"
        for v in row["versions"]
    )
    return (
        f"<details><summary>{_e(name)}, seed {row['seed']}: {len(row['versions'])} versions</summary><div class='wide'><table><thead>"
        "<tr><th>version</th><th>state</th><th class='text'>made of</th><th>turns</th><th>loss</th><th>KL to base</th><th>rate</th></tr></thead>"
        f"<tbody>{lines}</tbody></table></div></details>"
    )


def _e(text: Any) -> str:
    return html.escape(str(text))


# ------------------------------------------------------------------ compare


def compare(left: Path, right: Path, console: Console) -> int:
    """Print what differs between two folders of runs, with intervals over the seeds they share. Always 0: a difference is no error.

    Raises:
        ConfigError: a folder without runs, or nothing in common.
    """
    sides = []
    for folder in (left, right):
        rows = read_runs(folder)
        if not rows:
            raise ConfigError(f"there are no runs in {folder}")
        sides.append(grouped(rows))
    pairs = list(_matched(*sides))
    if not pairs:
        raise ConfigError(
            f"{left} and {right} have no user with the same wishes and number of interactions in common"
        )
    for group, names, some, other in pairs:
        table = Table("", "A", "B", "B − A", "seeds", title=f"{title(group)}\nA: {names[0]} · B: {names[1]}")
        seeds = sorted({row["seed"] for row in some} & {row["seed"] for row in other})
        a = {row["seed"]: row for row in some}
        b = {row["seed"]: row for row in other}
        for column in COLUMNS:
            values = [(column.read(a[seed]), column.read(b[seed])) for seed in seeds]
            both = [(x, y) for x, y in values if x is not None and y is not None]
            if not both:
                continue
            gaps = [y - x for x, y in both]
            low, high = interval(gaps)
            text = f"{mean(gaps):+z.{column.digits}f}"
            if math.isfinite(low):
                text += f" ± {high - mean(gaps):.{column.digits}f}"
                text = f"[bold]{text}[/]" if low > 0 or high < 0 else text
            means = [f"{mean([pair[place] for pair in both]):.{column.digits}f}" for place in (0, 1)]
            table.add_row(column.name, *means, text, str(len(both)))
        console.print(table)
    console.print("bold: the 95 % interval of the paired difference over seeds does not hold 0")
    return 0


def _matched(
    left: Mapping[Group, Mapping[str, Sequence[Json]]], right: Mapping[Group, Mapping[str, Sequence[Json]]]
) -> Iterator[tuple[Group, tuple[str, str], Sequence[Json], Sequence[Json]]]:
    """The same methods of both, with the same settings or else with others; where each side has a single one, these."""
    for group in left.keys() & right.keys():
        mine, theirs = left[group], right[group]
        if len(mine) == len(theirs) == 1:
            (name, rows), (other, more) = *mine.items(), *theirs.items()
            yield group, (name, other), rows, more
            continue
        for name, rows in mine.items():
            for other, more in theirs.items():
                if other == name or (name not in theirs and rows[0]["method"] == more[0]["method"]):
                    yield group, (name, other), rows, more
