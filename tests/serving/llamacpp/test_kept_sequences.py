"""Which sequence numbers are free, and which cached beginnings a prompt finds."""

from __future__ import annotations

from serving.llamacpp.kept_sequences import LEAST_COMMON, KeptSequences

ONE, OTHER = object(), object()
PROMPT = list(range(100, 140))


def kept(numbers: KeptSequences, adapter: object, ids: list[int]) -> int:
    number = numbers.take()
    assert number is not None
    for gone in numbers.keep(number, adapter, ids):
        numbers.give_back(gone)
    return number


def test_a_prompt_finds_the_longest_common_beginning_under_its_own_adapter() -> None:
    numbers = KeptSequences(8, 1000)
    kept(numbers, ONE, [*PROMPT[:20], 1])
    longest = kept(numbers, ONE, [*PROMPT[:30], 2, 3])
    kept(numbers, OTHER, PROMPT)
    found, length = numbers.find(ONE, PROMPT)
    assert found is not None
    assert (found.number, length) == (longest, 30)
    assert numbers.find(None, PROMPT) == (None, 0)


def test_at_least_one_token_of_the_prompt_is_left_to_compute() -> None:
    numbers = KeptSequences(4, 1000)
    kept(numbers, None, PROMPT)
    assert numbers.find(None, PROMPT)[1] == len(PROMPT) - 1


def test_a_short_common_beginning_is_not_used() -> None:
    numbers = KeptSequences(4, 1000)
    kept(numbers, None, [*PROMPT[: LEAST_COMMON - 1], *range(50)])
    assert numbers.find(None, PROMPT) == (None, 0)


def test_a_longer_reply_takes_the_place_of_its_own_beginning() -> None:
    numbers = KeptSequences(4, 1000)
    first, second = numbers.take(), numbers.take()
    assert first is not None
    assert second is not None
    assert numbers.keep(first, None, PROMPT[:20]) == []
    assert numbers.keep(second, None, PROMPT) == [first]
    assert numbers.tokens == len(PROMPT)


def test_what_was_used_longest_ago_is_given_up_first() -> None:
    numbers = KeptSequences(4, 1000)
    first = kept(numbers, None, PROMPT)
    second = kept(numbers, None, list(range(30)))
    found, _ = numbers.find(None, PROMPT)
    assert found is not None
    numbers.touch(found)
    assert numbers.evict() == second
    assert numbers.evict() == first
    assert numbers.evict() is None


def test_the_kept_tokens_stay_below_their_bound() -> None:
    numbers = KeptSequences(8, 100)
    for start in range(6):
        kept(numbers, None, list(range(1000 * start, 1000 * start + 40)))
    assert numbers.tokens <= 100
    number = numbers.take()
    assert number is not None
    assert numbers.keep(number, None, list(range(101))) == [number]


def test_all_of_an_adapter_are_dropped_and_no_number_is_lost() -> None:
    numbers = KeptSequences(3, 1000)
    mine = kept(numbers, ONE, PROMPT)
    kept(numbers, OTHER, PROMPT)
    dropped = numbers.drop(ONE)
    assert dropped == [mine]
    for number in dropped:
        numbers.give_back(number)
    assert numbers.find(ONE, PROMPT) == (None, 0)
    taken = {numbers.take() for _ in range(3)}
    assert None in taken  # the third is kept for the other adapter
    assert len(taken - {None}) == 2
