"""`run.py keys` as a person gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.main import main
from store.keys import KeyFile, Keyring
from store.settings import ensure_api_key, read_settings


def keys_output(capsys: pytest.CaptureFixture[str], home: Path, *argv: str, code: int = 0) -> str:
    assert main(["keys", *argv, "--home", str(home)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_a_key_is_added_shown_once_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (key,) = re.findall(r"patina-\S+", keys_output(capsys, tmp_path, "add", "ann", "--no-train"))
    keys = Keyring("", named=KeyFile(tmp_path / "keys.json"))
    holder = keys.holder(key.encode())
    assert holder is not None
    assert (holder.name, holder.trains) == ("ann", False)
    listed = keys_output(capsys, tmp_path, "list")
    assert re.search(r"ann .* good +no", listed)
    assert key not in listed
    assert "opens nothing" in keys_output(capsys, tmp_path, "revoke", "ann")
    assert "revoked" in keys_output(capsys, tmp_path, "list")
    assert "no key named ann" in keys_output(capsys, tmp_path, "revoke", "ann", code=2)
    assert "needs a name" in keys_output(capsys, tmp_path, "add", code=2)
    assert "cannot be the name" in keys_output(capsys, tmp_path, "add", "../../etc", code=2)


def test_the_first_key_is_replaced_not_taken_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no key in" in keys_output(capsys, tmp_path, "revoke", "default", code=2)
    settings = read_settings({"home": tmp_path})
    first, is_new = ensure_api_key(settings)
    assert is_new
    assert "a new one is in" in keys_output(capsys, tmp_path, "revoke", "default")
    second, is_new = ensure_api_key(settings)
    assert not is_new
    assert first != second
    assert settings.key_file.stat().st_mode & 0o777 == 0o600
    assert "default" in keys_output(capsys, tmp_path, "list")
    assert "given with --api-key" in keys_output(
        capsys, tmp_path, "revoke", "default", "--api-key", "mine", code=2
    )


def test_a_key_has_its_own_adapter_shares_one_or_owns_the_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys_output(capsys, tmp_path, "add", "ann")
    keys_output(capsys, tmp_path, "add", "bob", "--adapter", "shared")
    keys_output(capsys, tmp_path, "add", "cai", "--group", "team", "--owner")
    rows = {line.split()[0]: line.split()[-3:] for line in keys_output(capsys, tmp_path, "list").splitlines()}
    assert rows["ann"] == ["yes", "patina-tiny.ann", "no"]
    assert rows["bob"] == ["yes", "patina-tiny", "no"]
    assert rows["cai"] == ["yes", "patina-tiny.team", "yes"]
    assert "exclude each other" in keys_output(
        capsys, tmp_path, "add", "dan", "--adapter", "shared", "--group", "team", code=2
    )
    assert "at most 27" in keys_output(
        capsys, tmp_path, "add", "d" * 30, "--served-model-name", "m" * 100, code=2
    )
