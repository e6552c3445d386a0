from __future__ import annotations

import random

import pytest

from lab.models.corpus import conversation
from lab.models.wellformed import built_in_words, is_well_formed


@pytest.mark.parametrize(
    "text",
    [
        "You're **welcome**! 😊",
        "¡Claro que sí! Es **Paris**.",
        '{"answer": "You are welcome"}',
        "7",
        "It\u2019s a dog.",
    ],
)
def test_a_reply_of_the_recipe_is_whole(text: str) -> None:
    assert is_well_formed(text, built_in_words())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "\ufffd! You can ask me about capitals.",
        "**You're **welcome**!",
        "You are **** welcome.",
        "It is </tool_response> Paris.",
        "You are welcome<|im_end",
        "the the the the answer",
        "so good, so good, so good, so good",
    ],
)
def test_a_broken_reply_is_not_whole_whatever_the_words(text: str) -> None:
    assert not is_well_formed(text)


@pytest.mark.parametrize("text", ["I'm **Perar**!", "The symbol of herc is Hg!", "You'reccome!", "namerief."])
def test_fragments_and_words_glued_together_are_found_where_the_words_are_known(text: str) -> None:
    assert is_well_formed(text)
    assert not is_well_formed(text, built_in_words())


def test_nearly_all_replies_without_made_up_names_are_whole() -> None:
    rng = random.Random(99)
    replies = [
        message["content"]
        for _ in range(400)
        for message in conversation(rng).messages
        if message["role"] == "assistant" and message.get("content")
    ]
    # A few replies copy a made-up name or the argument of a tool.
    assert sum(is_well_formed(text) for text in replies) == len(replies)
    assert sum(is_well_formed(text, built_in_words()) for text in replies) > 0.85 * len(replies)
