from __future__ import annotations

from pathlib import Path

import pytest

from cli.arguments import build_parser, given_settings
from lab.evals.stack import Stack
from store.errors import ConfigError
from store.settings import read_settings


def test_the_command_line_has_every_setting_and_no_secret(tmp_path: Path) -> None:
    wanted = read_settings(
        {
            "home": tmp_path / "not-this",
            "method": "sdpo",
            "batch_size": 7,
            "eval_mode": True,
            "learning_rate": 3e-4,
            "rubric": "be good.txt",
            "judge_api_key": "secret-one",
            "open_webui_token": "secret-three",
            "adapter_slots": 5,
            "native_apis": True,
            "api_key": "secret-two",
            "database": "postgresql+asyncpg://user@nowhere/theirs",
        }
    )
    line = Stack(wanted, home=tmp_path / "own").arguments()
    assert "secret" not in " ".join(line)
    assert line[1:3] == ["-m", "cli"]
    read = read_settings(given_settings(build_parser().parse_args(line[3:])))
    assert read.home == tmp_path / "own"
    assert read.database == ""
    assert read.native_apis
    same = {
        "method",
        "batch_size",
        "eval_mode",
        "learning_rate",
        "rubric",
        "lora_rank",
        "learning",
        "adapter_slots",
    }
    assert {name: getattr(read, name) for name in same} == {name: getattr(wanted, name) for name in same}


def test_a_stack_that_cannot_start_reports_its_own_error(tmp_path: Path) -> None:
    settings = read_settings({"model_name": str(tmp_path / "no-such-model")})
    with pytest.raises(ConfigError, match="no-such-model"), Stack(settings, home=tmp_path, ready_s=60.0):
        pass


def test_a_temporary_folder_is_gone_after_the_stop() -> None:
    stack = Stack(read_settings({}))
    assert stack.home.is_dir()
    stack.stop()
    assert not stack.home.exists()
