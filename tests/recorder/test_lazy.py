"""Values that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Iterator

from recorder.lazy import LazyMapping, LazySequence


def test_a_sequence_computes_no_more_than_is_read() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(3):
            made.append(number)
            yield number

    values = LazySequence(numbers)
    assert made == []
    assert values
    assert next(iter(values)) == 0
    assert made == [0]
    assert list(values) == [0, 1, 2]
    assert (len(values), values[1], values[1:]) == (3, 1, [1, 2])
    assert made == [0, 1, 2]
    assert not LazySequence(lambda: ())


def test_a_mapping_is_computed_once_and_not_before_it_is_read() -> None:
    calls: list[str] = []

    def make() -> dict[str, int]:
        calls.append("made")
        return {"a": 1}

    values = LazyMapping(make)
    assert calls == []
    assert (values["a"], values.get("b"), len(values), list(values)) == (1, None, 1, ["a"])
    assert calls == ["made"]
