import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.hashing import ROOT, chain, digest, exact_json, text_key

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_exact_json_parses_back_to_the_same_value_in_the_same_key_order(value: object) -> None:
    text = exact_json(value)
    assert json.loads(text) == value
    assert exact_json(json.loads(text)) == text


def test_nan_is_not_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        exact_json(float("nan"))


def test_the_boundaries_of_hashed_parts_count() -> None:
    assert digest("ab", "c") != digest("a", "bc")


@given(st.lists(st.text(), max_size=8), st.lists(st.text(), max_size=8))
def test_equal_prefixes_have_equal_names_and_others_have_not(left: list[str], right: list[str]) -> None:
    a, b = chain(ROOT, left), chain(ROOT, right)
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        assert (x == y) == (left[: i + 1] == right[: i + 1])


def test_a_text_is_found_again_whatever_white_space_is_around_it() -> None:
    assert text_key(" yes\n") == text_key("yes") != text_key("no")


@pytest.mark.parametrize(
    "thought", ["<think>Hm.</think>", "Hm.</think>", "<think>a</think>b<think>c</think>"]
)
def test_a_completion_is_found_by_what_a_client_shows_of_it(thought: str) -> None:
    assert text_key(f"{thought}\n\nOne.\n\n- two\n") == text_key("One. - two")
    assert text_key(thought) != text_key("")


def test_lone_surrogates_can_be_named() -> None:
    assert digest("\ud800") != digest("\ud801")
