"""Which engine speaks to a backend: the one place that knows them all by name."""

from __future__ import annotations

from collections.abc import Sequence

from serving.http import HttpEngine
from serving.protocol import Engine
from serving.replicas import ReplicaEngine
from serving.vllm.engine import VllmEngine
from serving.vllm.folder import read_facts
from serving.vllm.turns import EngineByTurns
from store.settings import Settings

#: A vLLM that was started anew loads its model for so long, and longer where it compiles kernels; requests wait for it,
#: as long as the usual clients wait for an answer.
VLLM_PATIENCE_S = 600.0


def make_engine(settings: Settings, urls: Sequence[str], *, is_local: bool) -> Engine:
    """Return the engine that serves the policy.

    Args:
        urls: copies of one backend; at least one.
        is_local: it is ours to load adapters into; otherwise it is somebody else's endpoint.

    Raises:
        ConfigError: there is no such model.
    """
    if not is_local:
        return HttpEngine(urls[0], api_key=settings.upstream_api_key, speaks_vllm=False)
    if settings.backend != "vllm":
        return HttpEngine(urls[0])
    facts = read_facts(settings.model_path)
    engines = [
        VllmEngine(
            url,
            api_key=settings.upstream_api_key,
            facts=facts,
            slots=None if settings.upstream else settings.adapter_slots,
        )
        for url in urls
    ]
    if settings.colocate == "sleep":
        return EngineByTurns(engines[0], max_hold_s=settings.max_hold)
    return engines[0] if len(engines) == 1 else ReplicaEngine(engines)
