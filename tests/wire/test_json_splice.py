"""A few members are set or cut out; every other byte stays."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.json_splice import elements, members, set_members, value_end

names = st.sampled_from(["model", "logprobs", "x", "mod\\el", 'mo"del', ""])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from(['"model":', "\\", "]}", '{"model":1}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
shapes = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r")])


@given(
    value=st.dictionaries(names, values, max_size=4),
    new=st.dictionaries(st.sampled_from(["model", "logprobs"]), values, max_size=2),
    separators=shapes,
    ascii_only=st.booleans(),
)
def test_setting_members_changes_them_and_nothing_else(
    value: dict[str, Any], new: dict[str, Any], separators: tuple[str, str], ascii_only: bool
) -> None:
    def write(what: Any) -> bytes:
        return json.dumps(what, separators=separators, ensure_ascii=ascii_only).encode()

    text = write(value)
    made = set_members(text, {name: write(v) for name, v in new.items()}, value)
    assert json.loads(made) == {**value, **new}
    if set(new) <= set(value):
        assert made == write({**value, **new})
    elif not set(new) & set(value):
        assert made.endswith(text[1:])


@given(value=values, separators=shapes)
def test_a_value_ends_where_it_ends(value: Any, separators: tuple[str, str]) -> None:
    text = json.dumps(value, separators=separators).encode()
    assert value_end(b" " + text + b" ,1", 1) == len(text) + 1
    if isinstance(value, dict):
        found = list(members(text))
        assert [(m.name, json.loads(text[m.value : m.end])) for m in found] == list(value.items())
    if isinstance(value, list):
        assert [json.loads(text[i : value_end(text, i)]) for i in elements(text, 0)] == value


def test_a_repeated_key_is_set_each_time_and_an_escaped_one_is_found() -> None:
    text = b'{"model":1,"a":{"model":2},"model" : "x"}'
    assert (
        set_members(text, {"model": b"9"}, orjson.loads(text)) == b'{"model":9,"a":{"model":2},"model" : 9}'
    )
    text = b'{"\\u006dodel":1,"a":{"model":2}}'
    assert set_members(text, {"model": b"9"}, orjson.loads(text)) == b'{"\\u006dodel":9,"a":{"model":2}}'


@pytest.mark.parametrize(
    "text", [b"", b"[1]", b'{"a"', b'{"a" 1}', b'{"a":', b'{"a":"x', b'{"a":[1', b'{"a":1']
)
def test_what_is_no_whole_object_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"an? |no "):
        list(members(text))


def test_a_string_of_millions_of_escapes_is_passed_over() -> None:
    text = b'{"a":"' + b"\\n" * 3_000_000 + b'","model":1,"b":{"model":2}}'
    assert set_members(text, {"model": b"7"}, {"a": "", "model": 1}).endswith(b'","model":7,"b":{"model":2}}')


@pytest.mark.parametrize("depth", range(1, 12))
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"]":', b"}")])
def test_a_value_ends_where_it_ends_however_deep_it_is(depth: int, opening: bytes, closing: bytes) -> None:
    """Up to a depth one match finds the end, deeper values are walked: both sides of the bound, and the bound."""
    inner = b'"}]\\"", 1, [], {"a": {}}' if opening == b"[" else b'"}]\\""'
    text = opening * depth + inner + closing * depth
    orjson.loads(text)
    assert value_end(b" " + text + b"," + text, 1) == len(text) + 1
    behind = b'{"deep":' + text + b',"model":1}'
    assert set_members(behind, {"model": b"2"}, orjson.loads(behind)) == b'{"deep":' + text + b',"model":2}'
    with pytest.raises(ValueError, match="without an end"):
        value_end(text[:-1], 0)
