import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.change_notice import ChangeNotice, touch

#: A wait that ends by a change takes milliseconds.
_AT_ONCE_S, _LONG_S = 1.0, 20.0

_QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")
_KERNEL_KEEPS = int(_QUEUE.read_text()) if _QUEUE.exists() else 0

needs_inotify = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux'")


@pytest.fixture
def notice(tmp_path: Path) -> Iterator[ChangeNotice]:
    found = ChangeNotice(folders=[tmp_path])
    yield found
    found.close()


async def seconds_until_noticed(notice: ChangeNotice, change: Callable[[], object]) -> float:
    waiting = asyncio.create_task(notice.wait(_LONG_S))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    change()
    assert await waiting
    return time.monotonic() - began


@needs_inotify
@pytest.mark.parametrize("act", ["made", "appended to", "touched", "renamed", "removed"])
async def test_a_change_of_any_file_in_a_folder_ends_the_wait(tmp_path: Path, act: str) -> None:
    path = tmp_path / "a"
    if act != "made":
        path.write_text("one")
    notice = ChangeNotice(folders=[tmp_path])

    def change() -> None:
        match act:
            case "made":
                path.write_text("one")
            case "appended to":
                with path.open("a") as file:
                    file.write("two")
            case "touched":
                touch(path)
            case "renamed":
                path.rename(tmp_path / "b")
            case _:
                path.unlink()

    assert await seconds_until_noticed(notice, change) < _AT_ONCE_S
    notice.close()


@needs_inotify
async def test_what_changed_before_the_wait_ends_it_at_once(tmp_path: Path, notice: ChangeNotice) -> None:
    (tmp_path / "a").write_text("one")
    began = time.monotonic()
    assert await notice.wait(_LONG_S)
    assert time.monotonic() - began < _AT_ONCE_S


@needs_inotify
async def test_many_changes_end_one_wait(tmp_path: Path, notice: ChangeNotice) -> None:
    for number in range(5_000):
        (tmp_path / str(number)).touch()
    assert await notice.wait(_LONG_S)
    assert not await notice.wait(0.05)


@needs_inotify
async def test_more_changes_than_the_kernel_keeps_are_noticed(tmp_path: Path, notice: ChangeNotice) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for _ in range(_KERNEL_KEEPS // 2 + 10):  # in turn: equal events behind each other become one
        touch(a)
        touch(b)
    assert await notice.wait(_LONG_S)
    assert not await notice.wait(0.05)
    touch(a)
    assert await notice.wait(_LONG_S)


async def test_a_wait_without_a_change_lasts_its_time(notice: ChangeNotice) -> None:
    began = time.monotonic()
    assert not await notice.wait(0.2)
    assert 0.19 < time.monotonic() - began < 5


@needs_inotify
async def test_only_the_named_file_of_a_folder_counts(tmp_path: Path) -> None:
    notice = ChangeNotice(files=[tmp_path / "marker"])
    (tmp_path / "another").write_text("one")
    assert not await notice.wait(0.1)
    assert await seconds_until_noticed(notice, lambda: touch(tmp_path / "marker")) < _AT_ONCE_S
    assert await seconds_until_noticed(notice, lambda: touch(tmp_path / "marker")) < _AT_ONCE_S
    (tmp_path / "new").write_text("two")
    assert await seconds_until_noticed(notice, lambda: (tmp_path / "new").rename(tmp_path / "marker")) < 1
    notice.close()


@needs_inotify
async def test_an_ignored_file_ends_no_wait(tmp_path: Path) -> None:
    notice = ChangeNotice(folders=[tmp_path], ignored={"own"})
    (tmp_path / "own").write_text("one")
    assert not await notice.wait(0.1)
    notice.close()


@needs_inotify
async def test_a_row_of_changes_is_looked_at_once_in_an_interval(tmp_path: Path) -> None:
    notice = ChangeNotice(folders=[tmp_path], min_interval_s=0.3)
    path = tmp_path / "a"
    assert await seconds_until_noticed(notice, path.touch) < 0.25  # the first one at once
    looks, until = 0, time.monotonic() + 1.0
    while time.monotonic() < until:
        touch(path)
        await notice.wait(0.4)
        looks += 1
    assert 2 <= looks <= 4
    notice.close()


@needs_inotify
@pytest.mark.parametrize("moved", [False, True], ids=["removed", "moved away"])
async def test_a_folder_that_goes_and_comes_back_is_watched_again(tmp_path: Path, moved: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    notice = ChangeNotice(folders=[folder], poll_s=0.05)

    def change() -> None:
        if moved:
            folder.rename(tmp_path / "away")
        else:
            folder.rmdir()

    assert await seconds_until_noticed(notice, change) < _AT_ONCE_S
    assert not await notice.wait(_LONG_S)  # it polls meanwhile
    folder.mkdir()
    assert await notice.wait(_LONG_S)
    assert await seconds_until_noticed(notice, (folder / "a").touch) < _AT_ONCE_S
    notice.close()


async def test_without_inotify_a_wait_lasts_at_most_the_poll_interval(tmp_path: Path) -> None:
    notice = ChangeNotice(folders=[tmp_path], poll_s=0.1)
    notice.close()
    assert not notice.is_armed
    began = time.monotonic()
    assert not await notice.wait(_LONG_S)
    assert 0.09 < time.monotonic() - began < 5


async def test_nothing_to_watch_is_polled() -> None:
    notice = ChangeNotice(poll_s=0.05)
    assert not notice.is_armed
    assert not await notice.wait(_LONG_S)


@needs_inotify
async def test_a_waiting_task_can_be_cancelled_and_waits_again(tmp_path: Path, notice: ChangeNotice) -> None:
    waiting = asyncio.create_task(notice.wait(_LONG_S))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await seconds_until_noticed(notice, (tmp_path / "a").touch) < _AT_ONCE_S


async def test_a_process_wakes_its_own_wait_also_within_the_interval(tmp_path: Path) -> None:
    notice = ChangeNotice(folders=[tmp_path], min_interval_s=_LONG_S)
    notice.wake()
    assert await notice.wait(_LONG_S)  # asked for before the wait
    assert await seconds_until_noticed(notice, notice.wake) < _AT_ONCE_S
    assert not await notice.wait(0.05)  # each call ends one wait
    notice.close()


async def test_a_process_wakes_its_own_wait_where_it_polls() -> None:
    notice = ChangeNotice(poll_s=_LONG_S)
    assert await seconds_until_noticed(notice, notice.wake) < _AT_ONCE_S


async def test_an_event_ends_the_wait() -> None:
    notice, event = ChangeNotice(poll_s=_LONG_S), asyncio.Event()
    waking = asyncio.create_task(notice.wake_at(event))
    assert not await notice.wait(0.05)
    assert await seconds_until_noticed(notice, event.set) < _AT_ONCE_S
    await waking
