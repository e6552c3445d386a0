import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from store.errors import ConfigError
from store.learning import LearningConfig
from store.settings import (
    Settings,
    ensure_api_key,
    environment_names,
    make_private,
    read_settings,
    renew_backend_key,
    to_json,
    without_secrets,
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        for name in environment_names(field):
            monkeypatch.delenv(name, raising=False)


def test_the_command_line_wins_over_the_environment_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read_settings({}).batch_size == 4
    monkeypatch.setenv("BATCH_SIZE", "16")
    assert read_settings({}).batch_size == 16
    assert read_settings({"batch_size": 2}).batch_size == 2


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("METHOD", "opd", "method", "opd"),
        ("MODEL_NAME", "Qwen/Qwen3-8B", "model_name", "Qwen/Qwen3-8B"),
        ("PRM_M", "5", "prm_m", 5),
        ("OPENCLAW_COMBINE_W_OPD", "0.5", "w_opd", 0.5),
        ("OPENCLAW_COMBINE_W_RL", "2", "w_rl", 2.0),
        ("SGLANG_API_KEY", "secret", "api_key", "secret"),
        ("PROXY_PORT", "31000", "proxy_port", 31000),
        ("PATINA_HOME", "/tmp/elsewhere", "home", Path("/tmp/elsewhere")),
        ("PATINA_LORA_RANK", "8", "lora_rank", 8),
        ("EVAL_MODE", "1", "eval_mode", True),
    ],
)
def test_the_seeds_environment_names_are_read(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, expected: object
) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(read_settings({}), field) == expected


def test_common_names_in_the_environment_do_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/tmp/user")
    monkeypatch.setenv("THREADS", "9")
    monkeypatch.setenv("SEED", "9")
    settings = read_settings({})
    assert (settings.home, settings.threads, settings.seed) == (Path("/tmp/user/.patina"), 0, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "ppo"}, "--method 'ppo'"),
        ({"batch_size": 0}, "--batch-size 0: must be at least 1"),
        ({"proxy_port": 70000}, "--proxy-port 70000: must be at most 65535"),
        ({"learning_rate": 3.0}, "--learning-rate 3.0: must be below 1"),
        ({"kl_loss_coef": float("nan")}, "must be a finite number"),
        ({"opd_clip": -1}, "--learning opd_clip=-1: must be at least 0"),
        ({"passes": 0}, "--learning passes=0: must be at least 1"),
        ({"learning": "anchors=4, top-k=0"}, "--learning top_k=0: must be at least 1"),
        ({"learning": "anchors"}, "'anchors' is not key=value"),
        ({"learning": "warmth=1"}, "unknown learning setting 'warmth': one of alpha, "),
        ({"served_model_name": "a@b"}, "use letters, digits"),
        ({"upstream": "localhost:8000"}, "must be an http"),
        ({"upstream": "http://localhost:8000", "backend": "embedded"}, "exclude each other"),
    ],
)
def test_a_wrong_value_gets_one_clear_sentence(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_settings(given)
    assert "\n" not in str(caught.value)


def test_a_wrong_value_from_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRM_M", "many")
    with pytest.raises(ConfigError, match=r"PRM_M='many' \(from the environment\)"):
        read_settings({})


def test_child_processes_get_the_same_value_through_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read_settings({"home": tmp_path, "api_key": "", "w_rl": 0.7})
    path = tmp_path / "run" / "settings.json"
    settings.dump(path)
    monkeypatch.setenv("BATCH_SIZE", "99")
    assert Settings.load(path) == settings
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"method": "opd"}'])
def test_a_torn_settings_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="settings"):
        Settings.load(path)


def test_a_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path / "home"})
    key, made = ensure_api_key(settings)
    assert made
    assert len(key) > 20
    assert ensure_api_key(settings) == (key, False)
    assert stat.S_IMODE(settings.key_file.stat().st_mode) == 0o600


def test_an_explicit_empty_key_means_no_authorisation(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path / "home", "api_key": ""})
    assert ensure_api_key(settings) == ("", False)
    assert not settings.key_file.exists()


def test_secrets_never_show() -> None:
    shown = json.dumps(to_json(read_settings({"api_key": "s3cret", "judge_api_key": "t0psecret"})))
    assert "s3cret" not in shown
    assert "t0psecret" not in shown


def test_no_setting_that_is_named_like_a_secret_shows_and_no_credentials_in_a_url() -> None:
    secrets = {
        name
        for name in Settings.model_fields
        if re.search(r"api_key$|token$|headers$", name) and Settings.model_fields[name].annotation is not int
    }
    assert {"otlp_headers", "open_webui_token", "tinker_api_key"} <= secrets
    given: dict[str, Any] = dict.fromkeys(secrets, "x-token=s3cret")
    urls = ("otlp_endpoint", "open_webui_url", "judge_api_base")
    shown = to_json(read_settings({**given, **dict.fromkeys(urls, "http://ann:s3cret@host")}))
    assert "s3cret" not in json.dumps(shown)
    assert shown["otlp_endpoint"] == "http://***@host"


@pytest.mark.parametrize(
    ("model", "policy"),
    [("patina-tiny", "patina-tiny"), ("Qwen/Qwen3-8B", "Qwen3-8B"), ("/data/my model/", "my-model")],
)
def test_the_policy_is_named_after_the_model(model: str, policy: str) -> None:
    assert read_settings({"model_name": model}).policy == policy


def test_learning_settings_are_read_as_text_from_the_environment_and_beside_other_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATINA_LEARNING", "alpha=0.25, step-samples=3,anchors=4")
    learning = read_settings({}).learning
    assert (learning.alpha, learning.step_samples, learning.anchors) == (0.25, 3, 4)
    assert learning == LearningConfig(alpha=0.25, step_samples=3, anchors=4)  # all else is the default
    given = read_settings({"learning": "alpha=1,top_k=5", "top_k": 7, "seed": 3})
    assert (given.learning.alpha, given.learning.top_k, given.seed) == (1.0, 7, 3)
    given.dump(tmp_path / "settings.json")
    assert Settings.load(tmp_path / "settings.json").learning == given.learning


def test_a_port_that_other_machines_reach_needs_a_key_or_a_word() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2", "patina.example"):
        with pytest.raises(ConfigError, match="without a key opens the model"):
            read_settings({"proxy_host": host, "api_key": ""})
        assert read_settings({"proxy_host": host, "api_key": "k"}).proxy_host == host
        assert read_settings({"proxy_host": host}).api_key is None  # one is made at the first start
        assert read_settings({"proxy_host": host, "api_key": "", "insecure": True}).insecure
    assert read_settings({"proxy_host": "localhost", "api_key": ""}).is_loopback


def test_a_home_is_closed_whatever_the_umask_and_also_when_it_existed(tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return path.stat().st_mode & 0o7777

    before = os.umask(0)
    try:
        make_private(tmp_path / "new" / "home")
        assert mode(tmp_path / "new" / "home") == 0o700
        for name, inside in (("empty", None), ("earlier", "patina.db")):
            folder = tmp_path / name
            folder.mkdir(mode=0o755)
            if inside is not None:
                (folder / inside).touch()
            make_private(folder)
            assert mode(folder) == 0o700
        shared = tmp_path / "shared"
        shared.mkdir(mode=0o755)
        (shared / "other").touch()
        with pytest.raises(ConfigError, match=f"chmod 700 {shared}"):
            make_private(shared)
        assert mode(shared) == 0o755  # a folder of other things is left as it is
        public = tmp_path / "public"
        public.mkdir()
        public.chmod(0o1777)  # as /tmp
        with pytest.raises(ConfigError, match="chmod 700"):
            make_private(public)
    finally:
        os.umask(before)


def test_a_child_gets_no_secret_but_what_it_needs() -> None:
    environment = {
        "PATH": "/bin", "TOKENIZERS_PARALLELISM": "false", "SSH_AUTH_SOCK": "/x", "OPENAI_API_KEY": "a", "HF_TOKEN": "b",
        "AWS_SECRET_ACCESS_KEY": "c", "SGLANG_API_KEY": "d", "PATINA_UPSTREAM_API_KEY": "e", "DB_PASSWORD": "f",
        "PATINA_DATABASE": "postgresql://u:p@h/d",
    }  # fmt: skip
    plain = {"PATH": "/bin", "TOKENIZERS_PARALLELISM": "false", "SSH_AUTH_SOCK": "/x"}
    assert without_secrets(environment) == plain
    assert without_secrets(environment, {"HF_TOKEN"}) == {**plain, "HF_TOKEN": "b"}


def test_the_backends_secret_is_new_at_each_start_and_for_its_owner_only(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path, "upstream_api_key": "theirs"})
    assert settings.backend_key == "theirs"  # no backend of ours has been started
    settings.backend_key_file.parent.mkdir()
    keys = set()
    for _ in range(2):
        renew_backend_key(settings)
        keys.add(settings.backend_key)
        assert settings.backend_key_file.stat().st_mode & 0o777 == 0o600
    assert len(keys) == 2
    assert min(map(len, keys)) > 40
    attached = settings.model_copy(update={"upstream": "http://127.0.0.1:8000", "backend": "vllm"})
    assert attached.backend_key == "theirs"


def test_learning_settings_of_the_environment_stay_beside_given_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATINA_LEARNING", "anchors=3,passes=7")
    for given in ({"anchors": 5}, {"learning": "anchors=5"}):
        learning = read_settings(given).learning
        assert (learning.anchors, learning.passes) == (5, 7)
    monkeypatch.setenv("PATINA_LEARNING", "nothing")
    with pytest.raises(ConfigError, match="'nothing' is not key=value"):
        read_settings({"anchors": 5})


@pytest.mark.parametrize(
    ("given", "in_prompt", "in_weights"),
    [
        ({}, True, True),
        ({"wishes": "both"}, True, True),
        ({"wishes": "prompt"}, True, False),
        ({"wishes": "weights"}, False, True),
        ({"wishes": "off"}, False, False),
        ({"upstream": "http://localhost:1"}, False, False),
        ({"upstream": "http://localhost:1", "wishes": "prompt"}, True, False),
        ({"upstream": "http://localhost:1", "backend": "vllm"}, True, True),
    ],
)
def test_wishes_act_where_the_setting_says_and_at_an_endpoint_only_when_asked(
    given: dict[str, str], in_prompt: bool, in_weights: bool
) -> None:
    settings = read_settings(given)
    assert (settings.wishes_in_prompt, settings.wishes_in_weights) == (in_prompt, in_weights)


def test_an_endpoint_has_no_weights_that_could_learn_a_wish() -> None:
    with pytest.raises(ConfigError, match="an --upstream can have prompt"):
        read_settings({"upstream": "http://localhost:1", "wishes": "both"})
