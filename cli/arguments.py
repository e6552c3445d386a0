"""The command line, built from the fields of `Settings`: a flag's name, type and help are told once, there."""

from __future__ import annotations

import argparse
import typing
from pathlib import Path
from typing import Any

from store.settings import Settings

_GROUPS = {
    "learning": "learning",
    "model": "model",
    "serving": "serving",
    "scoring": "scoring",
    "record": "record",
}


class _Joined(argparse.Action):
    """A flag that may be repeated; its values are joined by commas, as they are written in the environment."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: typing.Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, "")
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _describe(name: str) -> tuple[str, str, dict[str, Any]]:
    """Return (group, help, argparse keywords) of one setting."""
    field = Settings.model_fields[name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)  # every field is made by `store.settings._field`
    help = f"{field.description} [{extra['env']}]"
    default = field.default
    if default not in (None, "") and not isinstance(default, bool):
        help += f" (default: {default})"
    keywords: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": name, "help": help.replace("%", "%%")}
    annotation = field.annotation
    if name == "upstream":
        keywords["action"] = _Joined
        keywords["metavar"] = "URL"
    elif annotation is bool:
        keywords["action"] = argparse.BooleanOptionalAction
    else:
        choices = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
        keywords["metavar"] = "{" + ",".join(choices) + "}" if choices else name.upper()
    return str(extra["group"]), help, keywords


def settings_parser() -> Parser:
    """Return a parent parser with a flag for every setting.

    Values stay text: `Settings` converts and checks them, so that a wrong one is told the same way wherever it came from.
    """
    parser = Parser(add_help=False)
    groups = {key: parser.add_argument_group(title) for key, title in _GROUPS.items()}
    for name in Settings.model_fields:
        group, _, keywords = _describe(name)
        groups[group].add_argument(_flag(name), **keywords)
    return parser


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what was given on the command line, by setting name."""
    return {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}


class Parser(argparse.ArgumentParser):
    """argparse with one sentence instead of a usage page when something is wrong."""

    def error(self, message: str) -> typing.NoReturn:
        self.exit(2, f"patina: {message} (see --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the whole command line: no command starts the house, the others look at it or steer it."""
    shared = settings_parser()
    parser = Parser(
        prog="run.py",
        description="Change one base URL, and your model starts to learn from you. Without a command: start "
        "everything (serving backend, proxy, scorers, trainer) and print what to paste into the client.",
        parents=[shared],
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def command(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=help, parents=[shared])

    status = command("status", "what was seen, scored and trained, what is live, and who is running")
    status.add_argument("--json", action="store_true", help="as JSON")

    trajectories = command("trajectories", "show or export the recorded turns")
    trajectories.add_argument(
        "--format",
        choices=["table", "jsonl", "datasets"],
        default="table",
        help="datasets: a folder load_from_disk reads",
    )
    trajectories.add_argument(
        "--output", type=Path, help="file (jsonl) or folder (datasets) to write; default: stdout"
    )
    trajectories.add_argument("--session", help="only this session")
    trajectories.add_argument("--stage", help="only turns in this stage of life")
    trajectories.add_argument("--limit", type=int, default=50, help="rows of the table (default: 50)")

    versions = command("versions", "every adapter version: what it was made of, and whether it lives")
    versions.add_argument("--json", action="store_true", help="as JSON")

    why = command("why", "which of your turns made a version, and what they said")
    why.add_argument("version", type=int)
    why.add_argument("--json", action="store_true", help="as JSON")

    rollback = command("rollback", "serve an earlier version again; 0 is the bare model")
    rollback.add_argument("version", type=int)

    command("pause", "stop training; serving, recording and scoring go on")
    command("resume", "go on training")
    command("verify", "re-hash and cross-check the record")

    keys = command("keys", "keys by name, for several people or programs: add NAME, list, revoke NAME")
    keys.add_argument("action", choices=["add", "list", "revoke"])
    keys.add_argument("name", nargs="?", help="whose key; the first one is called default")
    keys.add_argument(
        "--train",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether turns under the new key may train",
    )

    explain = command(
        "explain", "why a turn is what it is: rule, evidence, parent, confidence, feedback, fate"
    )
    explain.add_argument(
        "turn", help="its id, the end of it as `trajectories` shows, the completion id, or `last`"
    )
    explain.add_argument("--json", action="store_true", help="as JSON")

    classify = command("classify", "recorded traffic of a client through the proxy's own rules")
    classify.add_argument("file", type=Path, help="one request a line, in arrival order; see docs/clients.md")
    classify.add_argument("--predictions", type=Path, help="also write one JSON line a request here")

    evaluate = command("eval", "does it learn? simulated users, measurements, baselines, a report")
    evaluate.add_argument(
        "action",
        nargs="*",
        metavar="compare A B | report FOLDER",
        help="compare two folders of runs, or write a report again",
    )
    evaluate.add_argument("--base-url", help="a running Patina; default: own ones in fresh folders")
    evaluate.add_argument(
        "--fast", action="store_true", help="learn in this process, without proxy and record: for sweeps"
    )
    evaluate.add_argument(
        "--methods",
        default="combine,none,memory",
        help="rl opd combine sdpo; none memory; openclaw-rl openclaw-opd openclaw-combine claas user-interactions; or ours "
        "baselines references all (default: %(default)s)",
    )
    evaluate.add_argument(
        "--preferences",
        nargs="+",
        default=["concise,no_emoji"],
        help="each word one user; a comma joins the wishes of one (default: concise,no_emoji)",
    )
    evaluate.add_argument(
        "--users",
        default="steady",
        help="steady silent noisy wandering patient arriving change_of_mind shuffled (default: %(default)s)",
    )
    evaluate.add_argument("--interactions", type=int, default=40, help="of each run (default: %(default)s)")
    evaluate.add_argument("--seeds", type=int, default=5, help="how many (default: %(default)s)")
    evaluate.add_argument(
        "--first-seed",
        type=int,
        default=0,
        help="the first of them: others than those a choice was made on (default: %(default)s)",
    )
    evaluate.add_argument(
        "--measure-every",
        type=int,
        default=10,
        help="interactions between measurements (default: %(default)s)",
    )
    evaluate.add_argument(
        "--questions", type=int, default=48, help="probes a measurement (default: %(default)s)"
    )
    evaluate.add_argument(
        "--opposites",
        type=int,
        default=24,
        help="explicit requests for the opposite, before and after (default: %(default)s)",
    )
    evaluate.add_argument(
        "--tool-requests",
        type=int,
        default=18,
        help="requests that need a tool call, before and after (default: %(default)s: one is 6 %%)",
    )
    evaluate.add_argument(
        "--tabs",
        type=int,
        default=4,
        help="with --fast: conversations that the person has open at once, all answered before any is learnt from (default: "
        "%(default)s; without --fast one)",
    )
    evaluate.add_argument(
        "--thorough",
        action="store_true",
        help="opposites and tool calls at every measurement, not only before and after",
    )
    evaluate.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SETTING=V1,V2",
        help="settings to try with every method that learns, over its own; all combinations",
    )
    evaluate.add_argument(
        "--user-model", default="", help="litellm name of a model that plays the user; default: rules"
    )
    evaluate.add_argument("--user-model-base", default="", help="own base URL for it")
    evaluate.add_argument(
        "--output", type=Path, default=Path("eval"), help="folder of the runs and the report"
    )
    evaluate.add_argument(
        "--smoke", action="store_true", help="a few minutes; exit 1 if nothing, or the control, is learnt"
    )
    evaluate.add_argument(
        "--full",
        action="store_true",
        help="the comparison of docs/learning.md: all methods, five seeds, --fast in two processes",
    )
    evaluate.add_argument(
        "--jobs", type=int, default=1, help="--fast: runs at once, each a process (default: %(default)s)"
    )

    demo = command("demo", "a simulated user complains, and you watch the model change")
    demo.add_argument("--base-url", help="a running Patina; default: an own one in a fresh folder")
    demo.add_argument(
        "--preferences", default="concise,no_emoji", help="what the user wants (default: %(default)s)"
    )
    demo.add_argument("--interactions", type=int, default=72, help="most interactions (default: %(default)s)")
    demo.add_argument("--output", type=Path, default=Path("demo.png"), help="the plot (.png or .svg)")
    demo.add_argument("--json", type=Path, help="also write all numbers here")
    return parser
