"""The user's own reward function."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scorers.base import Rank
from scorers.custom import CustomReward, load_reward, turn_view
from store.errors import ConfigError, RewardError
from store.values import Json
from tests.scorers.turns import REPLY, feedback, said, tool, turn


def always(result: Any) -> CustomReward:
    return CustomReward(lambda _: result, "mine:f")


@pytest.mark.parametrize(
    ("result", "value"),
    [(1, 1), (-0.5, -1), (0, 0), (0.1, 0), (-0.1, 0), (0.2, 1), (True, 1), (False, -1), ({"value": 3}, 1)],
)
async def test_the_sign_of_the_reward_is_the_verdict(result: Any, value: int) -> None:
    opinion = await always(result).score(turn())
    assert opinion is not None
    assert (opinion.value, opinion.rank, opinion.source) == (value, Rank.CUSTOM, "custom:mine:f")


async def test_a_dict_may_bring_a_hint() -> None:
    opinion = await always({"value": -1, "hint": " Be short. "}).score(turn())
    assert opinion is not None
    assert (opinion.value, opinion.hint, opinion.hint_is_reaction) == (-1, "Be short.", False)
    only_hint = await always({"hint": "Be short."}).score(turn())
    assert only_hint is not None
    assert only_hint.value is None


async def test_none_abstains() -> None:
    assert await always(None).score(turn()) is None
    assert await always({}).score(turn()) is None


@pytest.mark.parametrize(
    "result", ["good", float("nan"), float("inf"), [], {"score": 1}, {"value": 1, "hint": 3}]
)
async def test_what_is_no_reward_is_an_error(result: Any) -> None:
    with pytest.raises(RewardError, match="mine:f"):
        await always(result).score(turn())


async def test_what_the_function_raises_is_reported() -> None:
    def broken(_: Json) -> float:
        raise KeyError("colour")

    with pytest.raises(RewardError, match="mine:f raised KeyError: 'colour'"):
        await CustomReward(broken, "mine:f").score(turn())


async def test_async_functions_are_awaited_and_bounded_in_time() -> None:
    async def good(view: Json) -> float:
        await asyncio.sleep(0)
        return 1.0 if view["next_text"] == "thanks" else -1.0

    async def slow(_: Json) -> float:
        await asyncio.sleep(60)
        return 1.0

    opinion = await CustomReward(good, "mine:f").score(turn(said("thanks")))
    assert opinion is not None
    assert opinion.value == 1
    with pytest.raises(RewardError, match="longer than"):
        await CustomReward(slow, "mine:f", timeout_s=0.01).score(turn())


def test_the_function_sees_the_turn_and_cannot_change_it() -> None:
    asked = turn(said("too long"), feedback=(feedback(-1.0, "bad"),))
    view = turn_view(asked)
    assert view == {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "completion": REPLY,
        "tool_calls": [],
        "next_role": "user",
        "next_text": "too long",
        "feedback": [{"score": -1.0, "text": "bad"}],
    }
    view["messages"][0]["content"] = "changed"
    assert asked.messages[0]["content"] == "What is the capital of France?"
    assert turn_view(turn())["next_role"] is None
    assert turn_view(turn(tool("22")))["next_role"] == "tool"


async def test_a_function_is_found_in_a_file_or_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_reward_for_tests.py"
    file.write_text("def f(turn):\n    return len(turn['completion']) * -1\n")
    by_file = load_reward(f"{file}:f")
    opinion = await by_file.score(turn())
    assert opinion is not None
    assert opinion.value == -1
    assert by_file.name == f"custom:{file}:f"
    monkeypatch.syspath_prepend(tmp_path)
    assert await load_reward("my_reward_for_tests:f").score(turn()) is not None


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("nothing", "use module:function or file.py:function"),
        (":f", "use module:function"),
        ("a b:not a name", "use module:function"),
        ("no_such_module_at_all:f", "cannot import no_such_module_at_all"),
        ("missing.py:f", "there is no file missing.py"),
        ("json:no_such_function", "json has no function no_such_function"),
        ("json:__all__", "json has no function __all__"),
    ],
)
def test_what_cannot_be_found_is_reported_at_the_start_in_one_sentence(path: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_reward(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_import_is_reported_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def f(:\n")
    with pytest.raises(ConfigError, match="cannot import"):
        load_reward(f"{file}:f")
