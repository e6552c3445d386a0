"""Features of a message: what is folded together and what is kept apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scorers.features import MAX_TOKENS, ends_in_question, features, normalise, tokens_of


def test_case_accents_apostrophes_and_long_letters_are_folded() -> None:
    assert normalise("DON’T  Más Laaaaargo") == "dont  mas largo"
    assert tokens_of("Thaaanks!!! 12345 x") == ["thanks", "!", "00", "x"]


def test_scripts_without_spaces_are_read_by_character_and_hangul_by_word() -> None:
    assert tokens_of("太长了") == ["太", "长", "了"]
    assert tokens_of("더 짧게") == ["더", "짧게"]


def test_code_blocks_and_addresses_are_placeholders() -> None:
    assert "def" not in tokens_of("```python\ndef f(): pass\n```\nstill broken")
    assert "example" not in tokens_of("see https://example.org/a?b")


def test_a_long_document_is_read_at_its_head_and_tail_only() -> None:
    tokens = tokens_of("wrong " + "blah " * 5000 + "the end")
    assert len(tokens) == MAX_TOKENS


def test_a_question_of_the_assistant_changes_the_features() -> None:
    assert ends_in_question("Have you been to Spain? 😊")
    assert ends_in_question("元気ですか？")
    assert not ends_in_question("Why? Because.")
    assert set(features("no", reply="Have you been there?")) != set(features("no", reply="It is Paris."))


def test_features_are_the_same_in_every_process() -> None:
    assert features("ok")[:3] == [647145051, 2691131754, 3599520660]


def test_words_of_the_reply_and_the_request_are_known_as_such_whatever_they_are() -> None:
    def shared(text: str, reply: str, prompt: str) -> set[int]:
        return set(features(text, reply=reply, prompt=prompt)) - set(features(text, reply=reply))

    first = shared("not Sydney", "It is Sydney.", "Capital of Australia?")
    other = shared("not Lisbon", "It is Lisbon.", "Capital of Portugal?")
    new = shared("not Canberra", "It is Sydney.", "Capital of Australia?")
    assert first == other
    assert first != new
    assert shared("京都は違う", "京都です", "どこ?") != shared("京都は違う", "奈良です", "どこ?")
    # A number that neither has is a correction more often.
    assert shared("it is 54", "It is 56.", "7 times 8?") != shared("it is 56", "It is 56.", "7 times 8?")


def test_without_a_request_nothing_is_compared() -> None:
    assert features("not Sydney", reply="It is Sydney.") == features("not Sydney", reply="It is Lisbon.")


@given(st.text(max_size=300), st.text(max_size=50), st.text(max_size=50))
def test_any_text_has_features_without_doubles(text: str, reply: str, prompt: str) -> None:
    found = features(text, reply=reply, prompt=prompt)
    assert len(found) == len(set(found))
    assert all(0 <= value < 1 << 32 for value in found)
