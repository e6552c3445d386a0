"""Rows of keys and values, and masks."""

from __future__ import annotations

import torch

from serving.embedded.kv_cache import BatchKvCache, build_mask

CPU = torch.device("cpu")


def write(cache: BatchKvCache, starts: list[int], values: list[list[float]]) -> torch.Tensor:
    """One layer, one head, head dim 1: write the values, give what attention would see."""
    new = torch.tensor(values)[:, None, :, None]
    cache.begin(starts, len(values[0]), CPU)
    keys, seen = cache.update(new, new * 10, 0)
    assert torch.equal(keys * 10, seen)
    return keys[:, 0, :, 0]


def test_rows_of_different_length_stand_side_by_side() -> None:
    cache = BatchKvCache()
    assert write(cache, [0, 0], [[1, 2, 3], [4, 5, 5]]).tolist() == [[1, 2, 3], [4, 5, 5]]
    # Row 1 has two tokens; its padding is overwritten by its next one.
    assert write(cache, [3, 2], [[7], [8]]).tolist() == [[1, 2, 3, 7], [4, 5, 8, 0]]
    assert write(cache, [4, 3], [[9, 1], [6, 2]]).tolist() == [[1, 2, 3, 7, 9, 1], [4, 5, 8, 6, 2, 0]]


def test_growing_keeps_what_is_there_and_gives_a_long_row_back() -> None:
    cache = BatchKvCache()
    write(cache, [0], [list(range(100))])
    assert cache.capacity == 128
    cache.reserve(3, 50)
    assert (cache.rows, cache.capacity) == (4, 64)
    assert write(cache, [50, 0], [[1], [2]])[0, :51].tolist() == [*range(50), 1]
    assert cache.bytes_for(3, 50) == 4 * 64 * 2 * 8  # rows, positions, keys and values, int64


def test_a_row_moves_between_and_within_caches() -> None:
    source, cache = BatchKvCache(), BatchKvCache()
    write(source, [0, 0], [[1, 2], [3, 4]])
    cache.reserve(2, 2)
    cache.copy_row(source, 1, 0, 2)
    cache.copy_row(source, 0, 1, 2)
    assert write(cache, [2, 2], [[8], [9]]).tolist() == [[3, 4, 8], [1, 2, 9]]
    cache.move_row(1, 0, 3)
    assert write(cache, [3], [[7]]).tolist() == [[1, 2, 9, 7]]
    cache.clear()
    assert cache.bytes_per_token == 0


def test_a_query_sees_its_own_row_up_to_itself() -> None:
    mask = build_mask([2, 0], 2, CPU)[:, 0].int().tolist()
    assert mask == [[[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 0, 0, 0], [1, 1, 0, 0]]]
    assert build_mask([3], 1, CPU, window=2)[0, 0].int().tolist() == [[0, 0, 1, 1]]
