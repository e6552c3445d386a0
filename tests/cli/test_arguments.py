import subprocess
import sys
from pathlib import Path

import pytest

from cli.arguments import build_parser, given_settings
from cli.main import main
from store.settings import Settings, has_flag, read_settings

ROOT = Path(__file__).parent.parent.parent

#: The flags of the OpenClaw-RL Tinker launcher, verbatim, with a value each.
SEED_FLAGS = {
    "--method": "opd",
    "--model-name": "Qwen/Qwen3-4B",
    "--lora-rank": "32",
    "--teacher-model-name": "Qwen/Qwen3-8B",
    "--learning-rate": "1e-5",
    "--batch-size": "16",
    "--max-steps": "1000",
    "--loss-fn": "ppo",
    "--kl-loss-coef": "0.1",
    "--save-interval": "20",
    "--resume-from-ckpt": "/some/adapter",
    "--w-opd": "0.5",
    "--w-rl": "1.5",
    "--prm-m": "5",
    "--prm-temperature": "0.7",
    "--prm-max-tokens": "512",
    "--proxy-host": "127.0.0.1",
    "--proxy-port": "31000",
    "--served-model-name": "qwen3-4b",
    "--api-key": "",
    "--record-dir": "/some/records",
    "--wandb-project": "patina",
}


def test_the_seeds_flags_are_taken_verbatim() -> None:
    argv = [word for pair in SEED_FLAGS.items() for word in pair] + ["--eval-mode"]
    settings = read_settings(given_settings(build_parser().parse_args(argv)))
    assert (settings.method, settings.batch_size, settings.w_rl, settings.api_key) == ("opd", 16, 1.5, "")
    assert settings.eval_mode


def test_the_help_names_every_setting_and_its_variable() -> None:
    text = " ".join(build_parser().format_help().split())
    for name, field in Settings.model_fields.items():
        assert (f"--{name.replace('_', '-')} " if has_flag(name) else f" {name}: ") in text
        assert field.description
        assert f"[{field.json_schema_extra['env']}]" in text  # type: ignore[index]  # made by `_field`


def test_few_settings_have_a_flag_of_their_own() -> None:
    """A new flag takes the place of another one; a rarely used setting goes without."""
    assert len([name for name in Settings.model_fields if has_flag(name)]) <= 50


def test_set_gives_any_setting() -> None:
    argv = ["--set", "adapter-slots=5", "--set", "top_k=7", "--learning", "alpha=.5", "--set", "batch_size=2"]
    settings = read_settings(given_settings(build_parser().parse_args(argv)))
    assert (settings.adapter_slots, settings.batch_size) == (5, 2)
    assert (settings.learning.top_k, settings.learning.alpha) == (7, 0.5)
    given = given_settings(build_parser().parse_args(["status", "--set", "native_apis=on"]))
    assert read_settings(given).native_apis


def test_flags_are_taken_before_and_after_a_command() -> None:
    parser = build_parser()
    assert given_settings(parser.parse_args(["--home", "/a", "status"]))["home"] == "/a"
    assert given_settings(parser.parse_args(["status", "--home", "/a"]))["home"] == "/a"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--method", "ppo"], "--method 'ppo'"),
        (["--batch-size", "none"], "--batch-size 'none'"),
        (["--no-such-flag"], "there is no flag --no-such-flag"),
        (["--adapter-slots", "3"], "there is no flag --adapter-slots: give --set adapter_slots=VALUE"),
        (["--no-native-apis"], "there is no flag --no-native-apis: give --set native_apis=VALUE"),
        (["--set", "adapter-slot=3"], "did you mean adapter_slots?"),
        (["--set", "adapter_slots"], "--set adapter_slots: give NAME=VALUE"),
        (["--set", "adapter_slots=1"], "--set adapter_slots='1': must be at least 2"),
        (["dance"], "there is no command dance"),
        (["why"], "required: version"),
        (["rollback", "yesterday"], "invalid int value: 'yesterday'"),
    ],
)
def test_a_wrong_value_gets_one_sentence_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(argv)
    except SystemExit as exc:
        code = int(str(exc.code))
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["", "status", "trajectories", "versions", "demo", "verify"])
def test_help_comes_up_without_anything_heavy(command: str) -> None:
    """What takes seconds to import must not be imported for a help page; time itself is measured in lab/bench/."""
    code = (
        "import sys\nfrom cli.main import main\n"
        f"try:\n    main({[command, '--help'] if command else ['--help']!r})\n"
        "except SystemExit as exc:\n    assert exc.code == 0\n"
        "heavy = {'torch', 'transformers', 'peft', 'litellm', 'sqlalchemy', 'matplotlib', 'openai'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
