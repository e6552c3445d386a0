"""What the server keeps on disk: one folder for each saved checkpoint, whole or not there."""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tinker.errors import Refused

Kind = Literal["weights", "sampler_weights"]
_SCHEME = "tinker://"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """What an adapter looks like."""

    rank: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """An adapter's tensors by peft's names, and its shape."""

    spec: LoraSpec
    tensors: dict[str, Tensor]
    base_model: str


class Checkpoints:
    """The folder `state`: `<model id>/<kind>/<name>/`, addressed as `tinker://<model id>/<kind>/<name>`."""

    def __init__(self, state: Path) -> None:
        self._state = state
        state.mkdir(parents=True, exist_ok=True)

    def save(
        self, model_id: str, kind: Kind, name: str, weights: Weights, optimizer: dict[str, Any] | None
    ) -> str:
        """Write a checkpoint and return its path; one of the same name is replaced."""
        import torch

        path = f"{_SCHEME}{model_id}/{kind}/{name}"
        folder = self._folder(path)
        fresh = folder.parent / f".{uuid.uuid4().hex}"
        fresh.mkdir(parents=True)
        save_file(
            {key: value.contiguous() for key, value in weights.tensors.items()},
            fresh / "adapter_model.safetensors",
        )
        if optimizer is not None:
            torch.save(optimizer, fresh / "optimizer.pt")
        (fresh / "config.json").write_text(
            json.dumps({"base_model": weights.base_model, "lora": asdict(weights.spec)})
        )
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
        return path

    def info(self, path: str) -> dict[str, Any]:
        """Return `base_model` and `lora` of a checkpoint. Raises: Refused when there is none."""
        try:
            found: dict[str, Any] = json.loads((self._folder(path) / "config.json").read_text())
        except FileNotFoundError:
            raise Refused(404, f"there is no checkpoint {path}") from None
        return found

    def load(self, path: str) -> Weights:
        """Raises: Refused when there is none."""
        info = self.info(path)
        return Weights(
            spec=LoraSpec(**info["lora"]),
            tensors=load_file(self._folder(path) / "adapter_model.safetensors"),
            base_model=info["base_model"],
        )

    def optimizer(self, path: str) -> dict[str, Any] | None:
        """Return the optimizer's state that was saved with a checkpoint."""
        import torch

        file = self._folder(path) / "optimizer.pt"
        if not file.exists():
            return None
        state: dict[str, Any] = torch.load(file, weights_only=True)
        return state

    def names(self, model_id: str) -> list[tuple[str, float]]:
        """Return the checkpoints of a model as (`<kind>/<name>`, time), oldest first."""
        folder = self._folder(f"{_SCHEME}{model_id}/weights/x").parent.parent
        found = [
            (f"{kind.name}/{one.name}", one.stat().st_mtime)
            for kind in (folder.iterdir() if folder.is_dir() else ())
            for one in kind.iterdir()
            if not one.name.startswith(".")
        ]
        return sorted(found, key=lambda each: each[1])

    def delete(self, path: str) -> None:
        """Raises: Refused when there is none."""
        self.info(path)
        shutil.rmtree(self._folder(path))

    def _folder(self, path: str) -> Path:
        parts = path.removeprefix(_SCHEME).split("/")
        if not path.startswith(_SCHEME) or len(parts) != 3 or any(part in ("", ".", "..") for part in parts):
            raise Refused(400, f"{path} is not a path of a checkpoint")
        return self._state.joinpath(parts[0].replace(":", "-"), *parts[1:])
