"""What a person calls a model, and what the Tinker server calls it."""

from __future__ import annotations

import pytest

from serving.tinker.model_names import choose_base_model, suggest
from store.errors import ConfigError

SUPPORTED = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-8B-Base",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "meta-llama/Llama-3.1-8B-Instruct",
)


def choose(given: str, *, wanted: str = "", path: str = "", supported: tuple[str, ...] = SUPPORTED) -> str:
    return choose_base_model(
        supported, wanted=wanted, given=given, path=path or given, is_same=lambda a, b: a == f"/link/to{b}"
    )


def test_the_same_name_is_taken() -> None:
    assert choose("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


def test_the_same_folder_under_another_path_is_taken() -> None:
    assert choose("mine", path="/models/mine", supported=("/link/to/models/mine",)) == "/link/to/models/mine"


def test_a_server_that_lists_no_model_gets_the_configured_name() -> None:
    assert choose("Qwen/Qwen3-8B", supported=()) == "Qwen/Qwen3-8B"


def test_what_the_person_says_counts_if_it_is_there() -> None:
    assert choose("/models/q", wanted="Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    with pytest.raises(ConfigError, match="--set tinker_model=Qwen/Qwen3-8B"):
        choose("/models/q", wanted="qwen/qwen3-8b")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("/home/me/models/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3_8B/", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("unsloth/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_another_spelling_is_not_guessed_but_suggested(given: str, meant: str) -> None:
    assert suggest(given, SUPPORTED) == meant
    with pytest.raises(ConfigError, match=f"give --set tinker_model={meant}$"):
        choose(given)


def test_the_error_for_an_unknown_model_lists_the_known_ones() -> None:
    many = tuple(f"org/model-{i}x" for i in range(40))
    with pytest.raises(ConfigError, match=r"no model named mistral; it has org/model-0x, .* and 28 more"):
        choose("mistral", supported=many)
