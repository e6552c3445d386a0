"""The command line, built from the fields of `Settings`: a flag's name, type and help are defined there."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.extensions import AddCommand, find_extensions
from cli.policies import add_policy_arguments
from store.errors import ConfigError
from store.learning import LearningConfig
from store.settings import Settings, has_flag, option
from store.version import COMMAND, VERSION

_GROUPS = {
    "learning": "learning",
    "model": "model",
    "serving": "serving",
    "scoring": "scoring",
    "record": "record",
}


#: What argparse says of a command that does not exist.
_WRONG_CHOICE = re.compile(r"argument (COMMAND): invalid choice: '([^']*)' \(choose from (.*)\)")

_SHARED = "the shared one, or the only one that has versions"

#: Settings that may be given more than once, and how their value is written.
_REPEATED = {"upstream": "URL", "learning": "KEY=VALUE"}

#: Characters in a line of the help that argparse does not wrap.
_WIDTH = 80

#: Where argparse keeps what `--set` gives.
SET_DESTINATION = "settings_by_name"


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


def _help(name: str) -> str:
    field = Settings.model_fields[name]
    extra: Any = field.json_schema_extra
    default = field.default
    has_default = default not in (None, "") and not isinstance(default, (bool, LearningConfig))
    return f"{field.description} [{extra['env']}]" + (f" (default: {default})" if has_default else "")


def _describe(name: str) -> tuple[str, dict[str, Any]]:
    """Return (group, argparse keywords) of one setting."""
    field = Settings.model_fields[name]
    extra: Any = field.json_schema_extra
    help = _help(name).replace("%", "%%")
    keywords: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": name, "help": help}
    annotation = field.annotation
    if name in _REPEATED:
        keywords["action"] = _Joined
        keywords["metavar"] = _REPEATED[name]
    elif annotation is bool:
        keywords["action"] = argparse.BooleanOptionalAction
    else:
        choices = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
        keywords["metavar"] = "{" + ",".join(choices) + "}" if choices else name.upper()
    return str(extra["group"]), keywords


def _describe_others() -> str:
    """Return the help of the settings without a flag."""
    lines = [
        textwrap.fill(f"  {name}: {_help(name)}", _WIDTH, subsequent_indent=" " * 8, break_on_hyphens=False)
        for name in Settings.model_fields
        if not has_flag(name)
    ]
    text = "\n".join(["settings of --set NAME=VALUE, besides those of --learning:", *lines])
    return text.replace("%", "%%")


def settings_parser() -> Parser:
    """Return a parent parser with a flag for every setting in common use, and one for all others.

    Values stay text: `Settings` converts and checks them, so that a wrong one gives the same error wherever it came from.
    """
    parser = Parser(add_help=False)
    groups = {key: parser.add_argument_group(title) for key, title in _GROUPS.items()}
    for name in filter(has_flag, Settings.model_fields):
        group, keywords = _describe(name)
        groups[group].add_argument(_flag(name), **keywords)
    parser.add_argument(
        "--set",
        action="append",
        default=argparse.SUPPRESS,
        dest=SET_DESTINATION,
        metavar="NAME=VALUE",
        help=f"any setting, also those without a flag, which `{COMMAND} --help` lists; repeatable",
    )
    return parser


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what was given on the command line, by setting name.

    Raises:
        ConfigError: `--set` names no setting.
    """
    given = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}
    for pair in getattr(arguments, SET_DESTINATION, []):
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if name in LearningConfig.model_fields:
            name, value = "learning", pair
        if not equals or name not in Settings.model_fields:
            names = [*Settings.model_fields, *LearningConfig.model_fields]
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--set {pair}: give NAME=VALUE with the name of a setting{hint}")
        given[name] = f"{given[name]},{value}" if name in _REPEATED and name in given else value
    return given


class Parser(argparse.ArgumentParser):
    """argparse with one sentence instead of a usage page when something is wrong."""

    def error(self, message: str) -> typing.NoReturn:
        if found := _WRONG_CHOICE.match(message):
            near = difflib.get_close_matches(found[2], re.findall(r"'([^']+)'", found[3]), 1)
            message = f"there is no {found[1].lower()} {found[2]}" + (
                f"; did you mean {near[0]}?" if near else ""
            )
        self.exit(2, f"patina: {message} (see --help)\n")

    def check_flags(self, argv: Sequence[str]) -> None:
        """Name the first flag that no command has, before its value is read as a command."""
        known = _flags(self)
        for word in argv:
            name = word.partition("=")[0]
            if word == "--":
                return
            if name.startswith("--") and not any(one.startswith(name) for one in known):
                setting = name[2:].removeprefix("no-").replace("-", "_")
                if setting in Settings.model_fields:
                    self.error(f"there is no flag {name}: give {option(setting, 'VALUE')}")
                near = difflib.get_close_matches(name[2:], [one[2:] for one in known], 1)
                self.error(f"there is no flag {name}" + (f"; did you mean --{near[0]}?" if near else ""))


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    """Return the long flags of a parser and its commands."""
    found: set[str] = set()
    for action in parser._actions:
        found.update(one for one in action.option_strings if one.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            found.update(*(_flags(command) for command in action.choices.values()))
    return found


def build_parser(prog: str = "run.py", argv: Sequence[str] = ()) -> Parser:
    """Return the whole command line. Without a command everything is started; the commands inspect or control it.

    Args:
        argv: what will be parsed. Where it names a command of ours, extensions are not looked for.
    """
    shared = settings_parser()
    parser = Parser(
        prog=prog,
        description=textwrap.fill(
            "Change one base URL, and your model starts to learn from you. Without a command: start everything (serving backend, "
            "proxy, recorder, scorers, trainer) and print what to paste into the client.",
            _WIDTH,
        ),
        epilog=_describe_others(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[shared],
    )
    parser.add_argument("--version", action="version", version=f"Patina {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def command(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=help, parents=[shared])

    def reading(name: str, help: str) -> argparse.ArgumentParser:
        found = command(name, help)
        found.add_argument(
            "--no-wait",
            action="store_true",
            help="do not wait until the recorder has taken in what is in the journal",
        )
        return found

    _add_record_commands(reading)
    _add_wishes(reading)
    _add_control_commands(command)
    _add_explain(reading)
    _add_replay_commands(command)
    _add_demo(command)
    for add in [] if set(argv) & set(commands.choices) else find_extensions():
        add(command)
    return parser


def _add_record_commands(command: AddCommand) -> None:
    status = command("status", "what was seen, scored and trained, what is live, and who is running")
    add_policy_arguments(status, "all")
    status.add_argument("--json", action="store_true", help="as JSON")

    clients = command(
        "clients", "the clients that sent requests, what became of their turns, and what looks wrong"
    )
    clients.add_argument("--json", action="store_true", help="as JSON")

    trajectories = command("trajectories", "show or export the recorded turns")
    trajectories.add_argument(
        "--format",
        choices=["table", "jsonl", "datasets", "preferences"],
        default="table",
        help="datasets: a folder load_from_disk reads; preferences: judged turns as text (prompt, chosen, rejected, hint)",
    )
    trajectories.add_argument(
        "--output", type=Path, help="file (jsonl) or folder (datasets) to write; default: stdout"
    )
    trajectories.add_argument("--session", help="only this session")
    trajectories.add_argument("--stage", help="only turns in this stage of life")
    trajectories.add_argument("--limit", type=int, default=50, help="rows of the table (default: 50)")

    versions = command("versions", "every adapter version: what it was made of, and whether it lives")
    versions.add_argument("--json", action="store_true", help="as JSON")
    add_policy_arguments(versions, _SHARED)

    verify = command("verify", "re-hash and cross-check the record, or check a receipt of `forget`")
    verify.add_argument(
        "receipt", nargs="?", type=Path, help="its signature, and that nothing of it is found again"
    )

    why = command("why", "which of your turns made a version, and their text")
    why.add_argument("version", type=int)
    why.add_argument("--json", action="store_true", help="as JSON")
    add_policy_arguments(why, _SHARED)


def _add_wishes(command: AddCommand) -> None:
    wishes = command("wishes", "what the model was asked to be, in your words; edit or remove one")
    wishes.add_argument(
        "action",
        nargs="?",
        choices=["list", "edit", "remove"],
        default="list",
        help="list (default), edit N WORDS, remove N: at once in the prompt",
    )
    wishes.add_argument("number", nargs="?", type=int, metavar="N", help="the wish, as the list numbers it")
    wishes.add_argument("words", nargs="?", metavar="WORDS", help="what it is to say instead")
    wishes.add_argument("--json", action="store_true", help="as JSON")
    add_policy_arguments(wishes, "all")


def _add_control_commands(command: AddCommand) -> None:
    rollback = command("rollback", "serve an earlier version again; 0 is the bare model")
    rollback.add_argument("version", type=int)
    add_policy_arguments(rollback, _SHARED)
    pin = command("pin", "keep the files of a version, so that `rollback` can reach it")
    pin.add_argument("version", type=int)
    pin.add_argument("--remove", action="store_true", help="let them go again")
    add_policy_arguments(pin, _SHARED)

    _add_forget(command)
    _add_retain(command)
    _add_import_and_compare(command)
    exported = command("export", "write a version for llama.cpp's own server and Ollama")
    exported.add_argument("version", type=int)
    exported.add_argument(
        "--gguf", action="store_true", required=True, help="as a GGUF adapter with a Modelfile"
    )
    exported.add_argument(
        "--out", type=Path, metavar="DIR", help="a new folder (default: POLICY-VERSION-gguf in this one)"
    )
    add_policy_arguments(exported, _SHARED)
    for name, help in (
        ("pause", "stop training; serving, recording and scoring go on"),
        ("resume", "go on training"),
    ):
        add_policy_arguments(command(name, help), "all")
    train = command("train", "train what is scored now, whatever --train-when and --batch-size say")
    train.add_argument("--now", action="store_true", required=True, help="begin now")
    command("recover", "salvage a damaged record into a fresh file; Patina must be stopped")
    backup = command("backup", "record, journal, versions and keys in one file; Patina may run")
    backup.add_argument("file", type=Path, metavar="FILE", help="a new file")
    restore = command("restore", "put a home back from a backup; Patina must be stopped")
    restore.add_argument("file", type=Path, metavar="FILE", help="what `backup` wrote")
    page = command("open", "print a link that signs you in to the web page, and open it in a browser")
    page.add_argument(
        "--browser", action=argparse.BooleanOptionalAction, default=True, help="open the link in a browser"
    )
    _add_openclaw(command)
    keys = command("keys", "keys by name, for several people or programs: add NAME, list, revoke NAME")
    keys.add_argument("action", choices=["add", "list", "revoke"])
    keys.add_argument("name", nargs="?", help="whose key; the first one is called default")
    keys.add_argument(
        "--train",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether turns under the new key may train",
    )
    keys.add_argument(
        "--adapter",
        choices=["own", "shared"],
        help="what turns under the new key train: an adapter of its own (default), or the shared one",
    )
    keys.add_argument("--group", help="the adapter that the new key shares with other keys of this group")
    keys.add_argument(
        "--owner", action="store_true", help="the new key may see and use what belongs to other keys"
    )


def _add_openclaw(command: AddCommand) -> None:
    openclaw = command("openclaw", "put Patina and its feedback plugin into OpenClaw's configuration")
    openclaw.add_argument(
        "--write",
        action="store_true",
        help="write it, and keep the present file as a backup; default: only show",
    )
    openclaw.add_argument(
        "--config",
        type=Path,
        default=Path("~/.openclaw/openclaw.json"),
        help="OpenClaw's configuration (default: %(default)s)",
    )
    openclaw.add_argument("--telegram-token", help="also set up Telegram with this bot's token")
    openclaw.add_argument(
        "--url",
        help="address at which OpenClaw reaches Patina, without /v1 (default: the one at which it serves this machine)",
    )
    openclaw.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait so long for Patina to answer (default: %(default)s)",
    )


def _add_forget(command: AddCommand) -> None:
    forget = command("forget", "delete turns and all that was made from them, write a receipt")
    forget.add_argument(
        "turn", nargs="?", help="its id, the end of it as `trajectories` shows, its completion id, or `last`"
    )
    forget.add_argument("--session", help="all turns of a session")
    forget.add_argument("--key", help="all turns under a key, by the name of the key")
    forget.add_argument("--match", help="all turns that hold this text, whatever its case")
    forget.add_argument("--since", help="of these, only turns from then on: 2026-11-24, or with a time")
    forget.add_argument("--dry-run", action="store_true", help="only list what would go")
    forget.add_argument(
        "--keep-replies",
        action="store_true",
        help="keep what versions that were trained on it answered under the same keys, unless it repeats the words",
    )
    forget.add_argument("--json", action="store_true", help="as JSON")


def _add_retain(command: AddCommand) -> None:
    retain = command(
        "retain",
        "forget conversations by themselves when their newest turn is so many days old; without DAYS: show how long they are kept",
    )
    retain.add_argument("days", nargs="?", help="a number of days, or `always`")
    retain.add_argument("--key", default="", help="only those under this key, by its name")


def _add_import_and_compare(command: AddCommand) -> None:
    imported = command("import", "turns of an export, or of OpenClaw-RL's record_*.jsonl, into the record")
    imported.add_argument("file", type=Path, help="JSON lines")
    imported.add_argument(
        "--key", default="import", help="name of the key that they count as (default: import)"
    )
    imported.add_argument("--policy", help="that they train (default: the shared policy)")

    compare = command("compare", "versions by fixed prompts: paired differences, and slow drift over several")
    compare.add_argument("versions", nargs="+", type=int, metavar="V", help="two or more; 0: the base model")
    compare.add_argument("--policy", help="default: the shared policy")
    compare.add_argument("--json", action="store_true", help="as JSON")


def _add_explain(command: AddCommand) -> None:
    explain = command(
        "explain", "why a turn is what it is: rule, evidence, parent, confidence, feedback, fate"
    )
    explain.add_argument(
        "turn", help="its id, the end of it as `trajectories` shows, the completion id, or `last`"
    )
    explain.add_argument("--json", action="store_true", help="as JSON")


def _add_replay_commands(command: AddCommand) -> None:
    classify = command("classify", "recorded traffic of a client through the proxy's own rules")
    classify.add_argument("file", type=Path, help="one request a line, in arrival order; see docs/clients.md")
    classify.add_argument("--predictions", type=Path, help="also write one JSON line a request here")

    score = command("score", "recorded reactions through the scorer: how your words are understood")
    score.add_argument(
        "file",
        type=Path,
        help='one JSON object a line: "text", and "prompt", "reply", "verdict" where known; see docs/scoring.md',
    )
    score.add_argument("--predictions", type=Path, help="also write one JSON line a reaction here")


def _add_demo(command: AddCommand) -> None:
    demo = command(
        "demo",
        "ask, complain, wait for the version, and compare replies before and after it, on a fresh system",
    )
    demo.add_argument("--json", type=Path, help="also write the numbers and replies here")
