"""The arguments of `run.py eval`, which `patina-lab` adds to the command line. Imports nothing heavy: every command builds this parser."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.extensions import AddCommand
from store.errors import ConfigError
from store.learning import LearningConfig
from store.settings import Settings, read_settings

#: Names in CLaaS's command.
_OTHER_NAMES = {
    "num_steps": "interactions",
    "base_model": "model_name",
    "output_dir": "output",
    "mode": "backend",
}


def add_eval(command: AddCommand) -> None:
    """Add the command; the entry point of the group `patina.commands`."""
    evaluate = command("eval", "does it learn? simulated users, measurements, baselines, a report")
    _add_eval_runs(evaluate)
    _add_eval_measurements(evaluate)
    _add_eval_operation(evaluate)
    evaluate.set_defaults(extension=_run)


def _run(settings: Settings, given: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    from lab.evals.command import run_eval

    if found := read_overrides(arguments):
        given = {**given, **found}
        settings = read_settings(given)
    return run_eval(settings, given, arguments)


def read_overrides(arguments: argparse.Namespace) -> dict[str, str]:
    """Take ``name=value`` from the words, as CLaaS's command takes them: options of this command are set, settings are returned.

    Raises:
        ConfigError: no option or setting has this name, or it takes another value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for add in (_add_eval_runs, _add_eval_measurements, _add_eval_operation):
        add(parser)
    options = {action.dest: action for action in parser._actions if action.option_strings}
    words, settings = [], {}
    for word in arguments.action:
        name, equals, value = word.partition("=")
        if not equals:
            words.append(word)
            continue
        name = _OTHER_NAMES.get(name, name.replace("-", "_"))
        listed = value.strip("[]").split(",") if value.startswith("[") else [value]
        if (option := options.get(name)) is not None and option.nargs != 0:
            values = listed if option.nargs == "+" else [",".join(listed)]
            try:
                parser.parse_args([option.option_strings[0], *(one.strip() for one in values)], arguments)
            except argparse.ArgumentError as exc:
                raise ConfigError(f"{word}: {exc.message}") from exc
        elif name in {*Settings.model_fields, *LearningConfig.model_fields}:
            settings[name] = value
        else:
            near = difflib.get_close_matches(name, [*options, *Settings.model_fields], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{word}: run.py eval has no option or setting {name}{hint}")
    arguments.action = words
    return settings


def _add_eval_runs(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument(
        "action",
        nargs="*",
        metavar="compare A B | report FOLDER | NAME=VALUE",
        help="compare two folders of runs, or write a report again; options and settings as NAME=VALUE: 'preferences=[concise]' num_steps=20",
    )
    evaluate.add_argument("--base-url", help="a running Patina; default: own ones in fresh folders")
    evaluate.add_argument(
        "--methods",
        default="combine,none,memory",
        help="rl opd combine sdpo; none memory; or ours baselines all (default: %(default)s)",
    )
    evaluate.add_argument(
        "--preferences",
        nargs="+",
        default=["concise,no_emoji"],
        help="each word one user; a comma joins the wishes of one; all: concise, no_emoji, plain, formal, spanish and "
        "json, each one user (default: concise,no_emoji)",
    )
    evaluate.add_argument(
        "--users",
        default="steady",
        help="steady silent noisy wandering patient mixed free retained arriving change_of_mind month; controls: shuffled "
        "unrelated "
        "(default: %(default)s)",
    )
    evaluate.add_argument(
        "--interactions", type=int, help="of each run (default: 300 for the user month, else 40)"
    )
    evaluate.add_argument(
        "--unrelated",
        type=int,
        help="further interactions without a word on style, measured at each third (default: 36 for the user retained, else 0)",
    )
    evaluate.add_argument("--seeds", type=int, default=5, help="how many (default: %(default)s)")
    evaluate.add_argument(
        "--first-seed",
        type=int,
        default=0,
        help="the first of them: others than those a choice was made on (default: %(default)s)",
    )


def _add_eval_measurements(evaluate: argparse.ArgumentParser) -> None:
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
        "--again",
        type=int,
        default=24,
        help="questions that name a wish, before and after (default: %(default)s)",
    )
    evaluate.add_argument(
        "--scope",
        type=int,
        default=24,
        help="requests for a whole list, JSON or code, before and after (default: %(default)s)",
    )
    evaluate.add_argument(
        "--elsewhere",
        type=int,
        default=24,
        help="questions below system prompts that the user never had, before and after (default: %(default)s)",
    )
    evaluate.add_argument(
        "--small-talk",
        type=int,
        default=24,
        help="thanks and greetings, before and after (default: %(default)s)",
    )
    evaluate.add_argument(
        "--tabs",
        type=int,
        nargs="+",
        default=[1],
        help="conversations that the person has open at once; several numbers are compared (default: 1)",
    )


def _add_eval_operation(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument(
        "--thorough",
        action="store_true",
        help="opposites and tool calls at every measurement, not only before and after",
    )
    evaluate.add_argument(
        "--sweep",
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
        help="all methods, five seeds, two wishes at once and each of six alone",
    )
