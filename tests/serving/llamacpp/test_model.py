"""A GGUF file and the folder that was converted from it: both are read, and must be of one model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from serving.llamacpp.__main__ import main
from serving.llamacpp.model import GgufModel, load_model
from store.errors import ConfigError
from tests.gguf_model import write_gguf_model
from tests.serving.llamacpp.test_gguf_adapter import computed, reference


def changed(folder: Path, copy: Path, **config: object) -> Path:
    shutil.copytree(folder, copy)
    found = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**found, **config}))
    return copy


def test_tokens_limits_and_defaults_are_those_of_the_folder(
    folder: Path, model: GgufModel, tmp_path: Path
) -> None:
    assert model.context == 2048
    assert model.vocabulary.encode("Größe", add_special_tokens=False)
    assert model.end_ids == {model.vocabulary.tokenizer.eos_token_id}
    copy = changed(folder, tmp_path / "copy", max_position_embeddings=900)
    (copy / "generation_config.json").write_text(
        json.dumps({"temperature": 0.2, "top_k": 7, "eos_token_id": [1, 2]})
    )
    read = load_model(write_gguf_model(folder, tmp_path / "model.gguf"), copy, threads=1)
    assert read.context == 900
    assert (read.defaults.temperature, read.defaults.top_k, read.defaults.top_p) == (0.2, 7, 1.0)
    assert {1, 2} <= read.end_ids


def test_a_file_of_another_vocabulary_is_refused(folder: Path, model: GgufModel, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, two = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    file = write_gguf_model(folder, tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="they are of different models"):
        load_model(file, other, threads=1)


def test_a_small_quantised_model_is_served_from_a_float16_copy_that_is_made_once(
    folder: Path, model: GgufModel, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = write_gguf_model(folder, tmp_path / "model.gguf", quantizes=True)
    first = load_model(file, copy, threads=1)
    (made,) = copy.glob("float16-*.gguf")
    assert not first.weights.is_quantized
    written = made.stat().st_mtime_ns
    load_model(file, copy, threads=1)
    assert made.stat().st_mtime_ns == written
    # 8-bit weights are off by more than their float16 copy is off from them
    error = (computed(first, None) - reference(folder, None)).abs().max()
    assert 0 < error < 0.5
    assert torch.isfinite(computed(first, None)).all()


def test_a_damaged_file_is_refused_by_the_librarys_reason(
    folder: Path, model: GgufModel, tmp_path: Path
) -> None:
    file = write_gguf_model(folder, tmp_path / "model.gguf")
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ConfigError, match=r"llama.cpp cannot load .*model.gguf: .*(corrupt|bounds)"):
        load_model(file, folder, threads=1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--model", "nowhere.gguf"], "there is no GGUF file nowhere.gguf"),
        (["--model", "{folder}/config.json"], "config.json is not a GGUF file"),
        (["--folder", "/nowhere"], "/nowhere is not a model folder: it has no config.json"),
    ],
)
def test_a_failed_start_ends_with_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], sentence: str
) -> None:
    file = write_gguf_model(folder, tmp_path / "model.gguf")
    given = ["--model", str(file), "--folder", str(folder), *(one.format(folder=folder) for one in wrong)]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert error.startswith("serving.llamacpp: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_the_engine_imports_no_torch(folder: Path, model: GgufModel, tmp_path: Path) -> None:
    file = write_gguf_model(folder, tmp_path / "model.gguf")
    script = (
        "import sys; from pathlib import Path; from serving.llamacpp.model import load_model; "
        "from serving.llamacpp.llamacpp_engine import LlamaCppEngine, LlamaCppOptions; import serving.openai_server.serve; "
        f"LlamaCppEngine(load_model(Path({str(file)!r}), Path({str(folder)!r}), threads=1), LlamaCppOptions(threads=1)); "
        "print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "False"
