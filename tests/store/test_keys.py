"""Named keys: hashed at rest, compared whole, seen by a running server as soon as they change."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from store.errors import ConfigError
from store.keys import KeyFile, Keyring, digest_of, new_key, read_key_file, write_secret


def wait_for_look() -> None:
    time.sleep(0.25)  # a keyring looks at the disk five times a second


def test_a_key_is_256_random_bits_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "home" / "keys.json")
    key = file.add("ann")
    assert len(key) >= 43 + len("patina-")
    assert key != new_key()
    text = file.path.read_text()
    assert key not in text
    assert digest_of(key) in text
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert [(k.name, k.trains, k.revoked_at) for k in file.read()] == [("ann", True, None)]


def test_names_are_checked_and_unique_while_they_open(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    for name in ("", "a b", "../x", "-x", "default", "anonymous", "x" * 65, "é", "a\n"):
        with pytest.raises(ConfigError, match="cannot be the name"):
            file.add(name)
    first = file.add("ann")
    with pytest.raises(ConfigError, match="has a key already"):
        file.add("ann")
    file.revoke("ann")
    with pytest.raises(ConfigError, match="no key named ann"):
        file.revoke("ann")
    second = file.add("ann", trains=False)
    assert first != second
    keys = Keyring("x", named=file)
    assert keys.holder(first.encode()) is None
    holder = keys.holder(second.encode())
    assert holder is not None
    assert (holder.name, holder.trains) == ("ann", False)


def test_many_writers_at_once_lose_no_key(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    threads = [threading.Thread(target=KeyFile(file.path).add, args=(f"n{i}",)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in file.read()} == {f"n{i}" for i in range(12)}


def test_a_running_keyring_follows_the_disk(tmp_path: Path) -> None:
    first = tmp_path / "api_key"
    write_secret(first, "one\n")
    file = KeyFile(tmp_path / "keys.json")
    keys = Keyring("one", key_file=first, named=file)
    assert not keys.is_open
    assert keys.holder(b"one") is not None
    assert keys.holder(b"") is keys.holder(b"two") is None
    ann = file.add("ann").encode()
    write_secret(first, "two\n")
    wait_for_look()
    assert keys.holder(ann) is not None
    assert keys.holder(b"one") is None
    two = keys.holder(b"two")
    assert two is not None
    assert two.name == "default"
    file.revoke("ann")
    wait_for_look()
    assert keys.holder(ann) is None


def test_an_unreadable_key_file_keeps_the_known_keys_and_admits_no_new_one(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    ann = file.add("ann").encode()
    keys = Keyring("one", named=file)
    assert keys.holder(ann) is not None
    for torn in ("{", "[]", '{"keys": [{"name": "eve"}]}', json.dumps({"keys": [{"bad": 1}]})):
        file.path.write_text(torn)
        wait_for_look()
        assert keys.holder(ann) is not None
        assert keys.holder(b"eve") is None
        assert "cannot be read" in (keys.problem or "")
    file.path.unlink()
    wait_for_look()
    assert keys.holder(ann) is None
    assert keys.problem is None


def test_an_empty_first_key_is_an_open_door(tmp_path: Path) -> None:
    assert Keyring("").is_open
    assert not Keyring("x").is_open


def test_a_new_key_has_an_adapter_of_its_own_and_one_of_before_the_shared_one(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    file.path.write_text(
        '{"keys": [{"name": "old", "digest": "x", "created_at": 1.0, "trains": true, "revoked_at": null}]}'
    )
    file.add("ann")
    file.add("bob", adapter="")
    file.add("cai", adapter="team", is_owner=True)
    assert [(key.name, key.adapter, key.is_owner) for key in file.read()] == [
        ("old", "", False),
        ("ann", "ann", False),
        ("bob", "", False),
        ("cai", "team", True),
    ]


def test_the_name_of_a_key_does_not_join_a_group(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    file.add("cai", adapter="team")
    with pytest.raises(ConfigError, match="to join them: --group team"):
        file.add("team")
    file.add("team", adapter="team")
    with pytest.raises(ConfigError, match="cannot name an adapter"):
        file.add("dan", adapter="../x")


def test_a_key_that_is_made_anew_keeps_its_adapter(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    file.add("ann")
    file.revoke("ann")
    file.add("ann")
    assert {key.adapter for key in file.read()} == {"ann"}


def test_a_digest_counts_whole(tmp_path: Path) -> None:
    """Two digests may begin or end alike: a session's, or one that was made to."""
    ring = Keyring("key")
    whole = digest_of("key")
    assert ring.of_digest(whole) is ring.first
    for place in range(64):
        other = whole[:place] + ("0" if whole[place] != "0" else "1") + whole[place + 1 :]
        assert ring.of_digest(other) is None
    assert ring.of_digest(whole[:32]) is ring.of_digest(whole + "0") is ring.of_digest("") is None


@pytest.mark.parametrize("text", ["", "\n", "  \n\n"])
def test_a_key_file_without_a_key_stops_the_start_instead_of_opening_the_home(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "api_key"
    file.write_text(text)
    with pytest.raises(ConfigError, match="is empty"):
        read_key_file(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key_file(tmp_path / "none")
    assert read_key_file(None) == ""
