"""The user's own reward: `module:function` or `file.py:function`, sync or async.

It is called with one dict:

    messages     the request's messages        completion   the reply's text         tool_calls   what it called
    next_role    "user", "tool" or None        next_text    what followed, or ""     feedback     [{"score", "text"}, …]

and returns a number, or a dict with ``value`` and perhaps ``hint``, or None to abstain. The number's sign is the verdict; what
lies within ±0.1 of zero is 0 (so a reward that runs from 0 to 1 should have its middle subtracted).
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scorers.base import Opinion, Rank, next_words, sign
from store.errors import ConfigError, RewardError
from store.values import AnsweredTurn, Json


class CustomReward:
    """A `Scorer` around the user's function.

    Args:
        path: as given on the command line, for messages and the verdict's source.
        timeout_s: for one call. A sync function that overruns keeps its thread until it returns.
    """

    def __init__(self, function: Callable[[Json], Any], path: str, *, timeout_s: float = 60.0) -> None:
        self._function = function
        self._path = path
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return f"custom:{self._path}"

    async def score(self, turn: AnsweredTurn) -> Opinion | None:
        """Call the function.

        Raises:
            RewardError: it raised, overran its time, or returned what is no reward.
        """
        view = turn_view(turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                if inspect.iscoroutinefunction(self._function):
                    result = await self._function(view)
                else:
                    result = await asyncio.to_thread(self._function, view)
                    if inspect.isawaitable(result):
                        result = await result
        except TimeoutError as exc:
            raise RewardError(f"{self._path} took longer than {self._timeout_s:g} s") from exc
        except Exception as exc:  # foreign code may raise anything; it is reported, counted and retried
            raise RewardError(f"{self._path} raised {type(exc).__name__}: {exc}") from exc
        return self._opinion(result)

    def _opinion(self, result: Any) -> Opinion | None:
        hint: str | None = None
        reward = result
        if isinstance(result, dict):
            unknown = result.keys() - {"value", "hint"}
            if unknown:
                raise RewardError(
                    f"{self._path} returned unknown keys: {', '.join(sorted(map(str, unknown)))}"
                )
            reward, given = result.get("value"), result.get("hint")
            if given is not None and not isinstance(given, str):
                raise RewardError(f"{self._path} returned a hint that is not a text")
            hint = given.strip() or None if given else None
        if reward is None:
            value = None
        elif isinstance(reward, bool):
            value = 1 if reward else -1
        else:
            try:
                number = float(reward)
            except (TypeError, ValueError):
                raise RewardError(f"{self._path} returned {str(result)[:80]!r}, which is no number") from None
            if not math.isfinite(number):
                raise RewardError(f"{self._path} returned {number}, which is no reward")
            value = sign(number)
        if value is None and hint is None:
            return None
        return Opinion(
            value=value,
            rank=Rank.CUSTOM,
            source=self.name,
            hint=hint,
            hint_is_reaction=False,
            detail={} if reward is None else {"reward": float(reward)},
        )


def turn_view(turn: AnsweredTurn) -> Json:
    """The dict the function is given: a copy, so that it may do with it what it likes."""
    words = next_words(turn)
    return {
        "messages": copy.deepcopy(list(turn.messages)),
        "completion": turn.completion.text,
        "tool_calls": copy.deepcopy(list(turn.completion.tool_calls)),
        "next_role": words[0] if words else None,
        "next_text": words[1] if words else "",
        "feedback": [{"score": f.score, "text": f.text} for f in turn.feedback],
    }


def load_reward(path: str) -> CustomReward:
    """Find the function that ``--custom-rm-path`` names.

    Raises:
        ConfigError: no such module, file or function; one sentence.
    """
    place, colon, name = path.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise ConfigError(f"--custom-rm-path {path!r}: use module:function or file.py:function")
    try:
        if place.endswith(".py"):
            file = Path(place).expanduser()
            if not file.is_file():
                raise ConfigError(f"--custom-rm-path {path!r}: there is no file {place}")
            spec = importlib.util.spec_from_file_location("patina_custom_reward", file)
            assert spec is not None  # it ends in .py
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except ConfigError:
        raise
    except Exception as exc:  # importing foreign code runs it
        raise ConfigError(f"--custom-rm-path {path!r}: cannot import {place}: {exc}") from exc
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"--custom-rm-path {path!r}: {place} has no function {name}")
    return CustomReward(function, path)
