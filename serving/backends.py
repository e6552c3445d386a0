"""Builds the client of a backend: the only module that names every implementation."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence

from serving.http import HttpBackend
from serving.protocol import BackendClient
from serving.replicas import ReplicatedBackend
from serving.vllm.engine import VllmBackend
from serving.vllm.gpu_sharing import GpuSharingBackend
from serving.vllm.model_folder import read_model_facts
from store.errors import ConfigError
from store.settings import Settings

#: A restarted vLLM needs this long to load its model, and longer where it compiles kernels. Requests wait for it as long as usual clients
#: wait for a response.
VLLM_BACKEND_WAIT_S = 600.0


def engine_tag(settings: Settings) -> str:
    """Return the end of this home's adapter names on an engine that other homes may use too; "" on one that Patina started.

    Without it two homes would call their first versions the same, and unload each other's.
    """
    if not (settings.backend == "vllm" and settings.upstream):
        return ""
    path = settings.home / "engine-tag"
    if not path.exists():
        made = path.with_name(f".engine-tag-{os.getpid()}")
        made.write_text(secrets.token_hex(4), encoding="ascii")
        with contextlib.suppress(FileExistsError):  # another gateway of this home was first
            os.link(made, path)
        made.unlink()
    return "." + path.read_text(encoding="ascii").strip()


def make_backend_client(settings: Settings, urls: Sequence[str], *, is_local: bool) -> BackendClient:
    """Return the client of the backend that serves the policy.

    Args:
        urls: replicas of one backend; at least one.
        is_local: Patina manages the backend and loads its adapters; otherwise it is a remote endpoint.

    Raises:
        ConfigError: the model does not exist, the backend's secret cannot be read, or this backend has no replicas.
    """
    if not is_local:
        return HttpBackend(urls[0], api_key=settings.upstream_api_key, speaks_vllm=False)
    if settings.backend != "vllm":
        if len(urls) > 1:
            raise ConfigError(f"several backends at once need --backend vllm, not {settings.backend}")
        return HttpBackend(urls[0], api_key=settings.backend_key)
    facts = read_model_facts(settings.model_path)
    engines = [
        VllmBackend(
            url,
            api_key=settings.backend_key,
            facts=facts,
            slots=None if settings.upstream else settings.adapter_slots,
            tag=engine_tag(settings),
        )
        for url in urls
    ]
    if settings.colocate == "sleep":
        return GpuSharingBackend(engines[0], max_hold_s=settings.max_hold)
    return engines[0] if len(engines) == 1 else ReplicatedBackend(engines)
