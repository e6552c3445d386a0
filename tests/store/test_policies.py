"""One module knows how policies are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import ConfigError
from store.policies import (
    MAX_NAME,
    ModelName,
    find_policy,
    group_of,
    is_group,
    parse_model,
    parse_version,
    policies_of,
    policy_name,
)

BASES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True)
GROUPS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(BASES, GROUPS, st.integers(0, 999_999_999))
def test_every_name_is_read_back_as_it_was_made(base: str, group: str, version: int) -> None:
    policy = policy_name(base, group)
    assert group_of(base, policy) == group
    assert parse_model(base, policy) == parse_model(base, f"{base}:{group}") == ModelName(group, None)
    assert parse_model(base, f"{policy}@{version}") == ModelName(group, version)
    assert parse_version(base, f"{policy}@{version}") == (policy, version)
    assert find_policy(base, policy) == policy


@given(BASES)
def test_the_shared_policy_has_the_name_of_the_base_model(base: str) -> None:
    assert policy_name(base, "") == base
    assert group_of(base, base) == ""
    assert parse_model(base, base) == ModelName(None, None)
    assert parse_version(base, f"{base}@3") == (base, 3)


@pytest.mark.parametrize(
    "model",
    ["", "gpt-4o", "tiny2", "tinyann", "tiny.", "tiny:", "tiny.a b", "tiny@", "tiny@x", "tiny@-1", "tiny@1@2", "tiny.@1",
     "tiny@1234567890", "tiny@\u0661"],
)  # fmt: skip
def test_other_names_are_no_policy_of_this_base(model: str) -> None:
    assert parse_model("tiny", model) is None


def test_a_group_is_a_plain_name_and_the_policy_fits_its_column() -> None:
    for name in ("../x", "a/b", "", ".a", "a@1", "a:b", "é", "x" * 65):
        assert not is_group(name)
    with pytest.raises(ConfigError, match="cannot name an adapter"):
        policy_name("tiny", "../x")
    assert len(policy_name("b" * 100, "g" * 27)) == MAX_NAME
    with pytest.raises(ConfigError, match="at most 27"):
        policy_name("b" * 100, "g" * 28)


def test_policies_of_another_base_are_left_out() -> None:
    names = ["tiny.bob", "other", "tiny", "tiny.ann", "tinier", "tiny.ann"]
    assert policies_of("tiny", names) == ["tiny", "tiny.ann", "tiny.bob"]


def test_a_person_names_a_policy_by_its_group_alone() -> None:
    assert find_policy("tiny", "ann") == find_policy("tiny", "tiny:ann") == "tiny.ann"
    assert find_policy("tiny", "tiny") == "tiny"
    for wrong in ("tiny@1", "a b", ""):
        with pytest.raises(ConfigError, match="is no policy"):
            find_policy("tiny", wrong)
