"""The file that a version trained by Tinker consists of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.tinker.version import FILE, TinkerVersion, read_version, write_version
from store.errors import AdapterError

GOOD = {"sampler_path": "tinker://run/sampler_weights/v1", "base_model": "Qwen/Qwen3-8B"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    version = TinkerVersion(
        sampler_path="tinker://run/sampler_weights/v1",
        state_path="tinker://run/weights/v1",
        base_model="Qwen/Qwen3-8B",
        lora_rank=16,
        address="http://127.0.0.1:8120",
    )
    assert write_version(tmp_path, version) == tmp_path / FILE
    assert read_version(tmp_path) == version


def test_fields_of_a_newer_patina_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({**GOOD, "loss": [1, 2]}))
    assert read_version(tmp_path) == TinkerVersion(
        sampler_path=GOOD["sampler_path"], base_model=GOOD["base_model"]
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "no tinker.json"),
        ('{"sampler_path": "tinker://a', "cannot be read"),
        ("[]", "not a JSON object"),
        (json.dumps({**GOOD, "sampler_path": "/etc/passwd"}), "no tinker:// path"),
        (json.dumps({**GOOD, "sampler_path": 7}), "wrong type"),
        (json.dumps({**GOOD, "lora_rank": True}), "wrong type"),
        (json.dumps({**GOOD, "state_path": "file:///x"}), "state_path"),
        (json.dumps({**GOOD, "base_model": ""}), "does not name its base model"),
    ],
)
def test_what_is_missing_torn_or_strange_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(AdapterError, match=why):
        read_version(tmp_path)


def test_a_path_of_another_account_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(AdapterError):
        write_version(tmp_path, TinkerVersion(sampler_path="s3://bucket", base_model="m"))
    assert not (tmp_path / FILE).exists()
