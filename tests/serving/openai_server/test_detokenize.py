"""Ids to text, piece by piece."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from serving.openai_server.detokenize import StopFinder, WindowDetokenizer, byte_level_alphabet
from serving.openai_server.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Path) -> Vocabulary:
    from transformers import AutoTokenizer

    return Vocabulary(AutoTokenizer.from_pretrained(tiny_model), 0)


def pieces_of(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    detokenizer = vocabulary.detokenizer(skip_special_tokens=True, keep_tool_tags=False)
    return [*(detokenizer.feed(one) for one in ids), detokenizer.flush()]


def test_an_emoji_that_spans_tokens_is_held_back_until_it_is_whole(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("ok 🦖!", add_special_tokens=False)
    chunks = pieces_of(vocabulary, ids)
    assert "".join(chunks) == "ok 🦖!"
    assert len(ids) > 4, "the tokenizer must not know this emoji as one token"
    assert all("\ufffd" not in chunk for chunk in chunks)
    assert sum("🦖" in chunk for chunk in chunks) == 1


def test_the_pieces_joined_are_the_full_decoding_for_any_ids(vocabulary: Vocabulary) -> None:
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(vocabulary.size) for _ in range(rng.randrange(1, 40))]
        assert "".join(pieces_of(vocabulary, ids)) == vocabulary.decode(ids, skip_special_tokens=True)


def test_an_unfinished_character_comes_out_as_a_replacement_at_the_end(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("🦖", add_special_tokens=False)[:-1]
    assert "".join(pieces_of(vocabulary, ids)) == vocabulary.decode(ids) == "\ufffd"


def test_special_tokens_leave_no_text_and_tool_tags_do_when_asked(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("a<tool_call>b<|im_end|>", add_special_tokens=False)
    detokenizer = vocabulary.detokenizer(skip_special_tokens=True, keep_tool_tags=True)
    assert "".join(map(detokenizer.feed, ids)) == "a<tool_call>b"
    shown = vocabulary.detokenizer(skip_special_tokens=False, keep_tool_tags=False)
    assert "".join(map(shown.feed, ids)) == "a<tool_call>b<|im_end|>"


def test_the_bytes_of_half_a_character_are_its_true_bytes(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("🦖", add_special_tokens=False)
    assert b"".join(vocabulary.bytes(one) for one in ids) == "🦖".encode()


def test_a_vocabulary_with_byte_fallback_and_word_marks_streams_what_it_decodes() -> None:
    bytes_ = {f"<0x{byte:02X}>": byte for byte in range(256)}
    words = {"▁Hello": 256, "▁world": 257, "!": 258}
    tokenizer = Tokenizer(models.BPE(vocab={**bytes_, **words}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    ids = [256, 257, *"🦖é".encode(), 258, 257]
    detokenizer = WindowDetokenizer(lambda part: str(tokenizer.decode(list(part))))
    chunks = [*(detokenizer.feed(one) for one in ids), detokenizer.flush()]
    assert "".join(chunks) == tokenizer.decode(ids) == "Hello world🦖é! world"
    assert all("\ufffd" not in chunk for chunk in chunks)


def test_the_window_stays_right_over_long_texts() -> None:
    detokenizer = WindowDetokenizer(lambda part: "".join(chr(97 + one % 26) for one in part))
    text = "".join(detokenizer.feed(one) for one in range(1000)) + detokenizer.flush()
    assert text == "".join(chr(97 + one % 26) for one in range(1000))


def test_the_byte_alphabet_names_each_byte_once() -> None:
    alphabet = byte_level_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert alphabet["Ġ"] == 0x20
    assert alphabet["Ċ"] == 0x0A


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_stop_string_is_found_in_every_chunking_and_nothing_of_it_leaks(size: int) -> None:
    text = "one two END three"
    finder = StopFinder(["END"])
    given = "".join(finder.feed(text[i : i + size]) for i in range(0, len(text), size))
    assert given == "one two "
    assert finder.matched == "END"
    assert finder.flush() == ""


def test_what_only_looked_like_a_stop_string_is_given_out_in_the_end() -> None:
    finder = StopFinder(["END", "\n\n"])
    assert finder.feed("the EN") == "the "
    assert finder.feed("TRY\n") == "ENTRY"
    assert finder.flush() == "\n"
    assert finder.matched is None


def test_the_stop_that_begins_first_wins_and_can_be_kept() -> None:
    finder = StopFinder(["bc", "abcd", "ab"], include=True)
    assert finder.feed("xxabcd") == "xxabcd"
    assert finder.matched == "abcd"
