"""Text of messages."""

from store.texts import content_text, counted, last_user_text, strip_controls
from store.values import Json


def test_text_of_any_content_shape() -> None:
    assert content_text("a") == "a"
    assert (
        content_text([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, "b"]) == "a\nb"
    )
    assert content_text(None) == content_text(7) == content_text([]) == ""


def test_one_thing_is_counted_in_the_singular() -> None:
    assert [counted(number, "turn") for number in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]


def test_the_last_user_message_counts_whatever_its_form() -> None:
    parts: Json = {"role": "user", "content": [{"type": "text", "text": "b"}, "c"]}
    messages: list[Json] = [{"role": "user", "content": "a"}, parts, {"role": "assistant", "content": "d"}]
    assert last_user_text(messages) == "b\nc"
    assert last_user_text(messages[2:]) == ""


def test_what_steers_a_terminal_is_stripped_and_the_text_stays() -> None:
    hostile = "a\x1b]0;title\x07b\x1b[31mc\x9b2Jd\u202ee\u2066f\x7fg\r\nh\ti ü 🎉"
    assert strip_controls(hostile) == "a]0;titleb[31mc2Jdefg\nh\ti ü 🎉"
