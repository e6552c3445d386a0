"""What is found wrong before anything starts, in one sentence."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from cli.arguments import build_parser
from cli.backend import resolve
from cli.main import main
from cli.start_checks import check_start, notes_on_environment
from serving.ports import bind
from store.errors import ConfigError
from store.settings import DEFAULT_MODEL, REPOSITORY, make_private, read_settings


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--resume-from-ckpt: there is no folder /nope"):
        check_start(read_settings({"resume_from_ckpt": "/nope"}))
    check_start(read_settings({"resume_from_ckpt": str(tmp_path)}))


def test_variables_that_are_set_and_not_used_are_named() -> None:
    environment = {"TINKER_HOST": "x", "PORT": "1", "CLAAS_STORE": "x", "NUM_GPUS": "", "HOME": "/root"}
    notes = notes_on_environment(read_settings({}), environment)
    assert [note.partition(" ")[0] for note in notes] == ["TINKER_HOST", "PORT", "CLAAS_STORE"]
    served = read_settings({"model_name": DEFAULT_MODEL, "tinker_base_url": "http://localhost:9"})
    (note,) = notes_on_environment(resolve(served)[0], {})
    assert note.startswith("TINKER_BASE_URL is set and not used: --backend is embedded")


@pytest.mark.parametrize("name", ["HF_CKPT", "CLAAS_BASE_MODEL_ID", "MODEL_NAME"])
def test_other_launchers_names_of_the_model_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_NAME", raising=False)
    monkeypatch.setenv(name, "some/model")
    assert read_settings({}).model_name == "some/model"


def test_a_key_for_tinker_alone_asks_what_is_meant() -> None:
    settings = read_settings({"model_name": "Qwen/Qwen3-8B", "tinker_api_key": "tml-x"})
    with pytest.raises(ConfigError, match=r"give --backend tinker .* or --backend embedded"):
        resolve(settings)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("/path/file.db", r"write sqlite\+aiosqlite:////path/file.db"),
        ("sqlite:////path/file.db", r"write sqlite\+aiosqlite:////path/file.db"),
        ("postgresql://u:secret@h/d", r"write postgresql\+asyncpg://…@h/d"),
        ("mysql://u@h/d", "mysql is not supported"),
    ],
)
def test_a_database_of_another_form_is_refused_with_the_right_one(value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        read_settings({"database": value})
    assert "secret" not in str(raised.value)


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file: give --home a folder"):
        make_private(tmp_path / "file")


def test_an_address_that_is_not_this_machines_is_not_blamed_on_the_port() -> None:
    with pytest.raises(
        ConfigError, match=r"300\.1\.1\.1 is not an address of this machine: give another --proxy-host"
    ):
        bind("300.1.1.1", 0, option="--proxy-port")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--metod combine", "there is no flag --metod; did you mean --method?"),
        ("--metod=combine", "there is no flag --metod; did you mean --method?"),
        ("--device cuda", "there is no flag --device (see --help)"),
        ("statsu", "there is no command statsu; did you mean status?"),
        ("xyzzy", "there is no command xyzzy (see --help)"),
    ],
)
def test_a_typing_error_is_answered_with_what_was_meant(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_flags_that_exist_pass() -> None:
    parser = build_parser()
    for line in (
        "--method rl",
        "--meth=rl",
        "status --json",
        "--vllm-args=--seed eval --smoke",
        "wishes edit 1 -- --x",
    ):
        parser.check_flags(line.split())


def test_an_old_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = REPOSITORY / "run.py"
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 7))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    with pytest.raises(
        SystemExit, match=r"patina: Python 3\.11 or newer is needed, and this is Python 3\.9$"
    ):
        runpy.run_path(str(file))


def test_a_python_without_the_packages_is_told_where_they_are() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "run.py"], cwd=REPOSITORY, env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("patina: the package ")
    assert line.endswith("`make run` installs into .venv, then use .venv/bin/python run.py")


def test_a_collectors_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--otlp-endpoint 'collector:4318': must be an http:// or https:// URL"
    ):
        read_settings({"otlp_endpoint": "collector:4318"})
