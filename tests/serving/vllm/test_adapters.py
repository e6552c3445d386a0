"""Adapters that vLLM would serve as noise are seen before it gets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from serving.vllm.adapters import check_adapter
from serving.vllm.model_folder import read_model_facts
from store.errors import AdapterError
from tests.fixtures import PATINA_TINY


def test_one_of_this_model_is_fine(tiny_model: Path, tiny_adapters: tuple[Path, Path]) -> None:
    facts = read_model_facts(str(tiny_model))
    for folder in tiny_adapters:
        check_adapter(folder, facts, max_rank=8)


def test_an_adapter_of_another_model_is_recognised_by_its_shapes(tiny_adapters: tuple[Path, Path]) -> None:
    with pytest.raises(AdapterError, match=r"is of another model than .*patina-tiny"):
        check_adapter(tiny_adapters[0], read_model_facts(str(PATINA_TINY)))


def test_a_rank_beyond_the_engines_is_refused(tiny_model: Path, tiny_adapters: tuple[Path, Path]) -> None:
    with pytest.raises(AdapterError, match="has rank 8, the engine takes up to 4"):
        check_adapter(tiny_adapters[1], read_model_facts(str(tiny_model)), max_rank=4)


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_a_torn_file_is_reported(
    tiny_model: Path, tiny_adapters: tuple[Path, Path], tmp_path: Path, kept: int
) -> None:
    folder = Path(shutil.copytree(tiny_adapters[0], tmp_path / "torn"))
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(AdapterError, match=r"torn|cannot be read"):
        check_adapter(folder, read_model_facts(str(tiny_model)))


def test_a_folder_that_is_no_adapter_is_reported(
    tiny_model: Path, tiny_adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    facts = read_model_facts(str(tiny_model))
    with pytest.raises(AdapterError, match="not an adapter folder"):
        check_adapter(tmp_path, facts)
    folder = Path(shutil.copytree(tiny_adapters[0], tmp_path / "other"))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    with pytest.raises(AdapterError, match="only LoRA"):
        check_adapter(folder, facts)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(AdapterError, match="does not exist"):
        check_adapter(folder, facts)
