"""The journal: what was said to be on the disk is there after any end of the process."""

import asyncio
import os
from pathlib import Path

import pytest

from proxy.journal import Journal


def all_lines(journal: Journal) -> list[bytes]:
    return list(journal.lines(0, journal.size()))


async def test_many_appends_share_a_flush_and_keep_their_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    await asyncio.gather(*(journal.append(b"%d\n" % i) for i in range(100)))
    assert all_lines(journal) == [b"%d\n" % i for i in range(100)]
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600
    journal.empty()
    assert (journal.size(), all_lines(journal)) == (0, [])
    await journal.append(b"again\n")
    assert all_lines(journal) == [b"again\n"]
    journal.close()


async def test_a_torn_line_is_closed_before_the_next_is_written(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b'{"whole": 1}\n{"torn": ')
    journal = Journal(tmp_path / "journal")
    await journal.append(b'{"new": 1}\n')
    assert all_lines(journal) == [b'{"whole": 1}\n', b'{"torn": \n', b'{"new": 1}\n']
    journal.close()


async def test_a_bound_that_is_reached_and_a_folder_that_is_gone_are_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", capacity_bytes=10)
    await journal.append(b"12345\n")
    with pytest.raises(OSError, match="bound"):
        await journal.append(b"67890\n")
    assert all_lines(journal) == [b"12345\n"]
    journal.close()
    nowhere = Journal(tmp_path / "nowhere" / "journal")
    with pytest.raises(FileNotFoundError):
        await nowhere.append(b"x\n")
    assert nowhere.size() == 0


async def test_a_file_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    await journal.append(b"a\n")
    os.unlink(tmp_path / "journal")
    await journal.append(b"b\n")
    assert (tmp_path / "journal").read_bytes() == b"b\n"
    journal.close()
