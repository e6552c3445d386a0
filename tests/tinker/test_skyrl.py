"""The Tinker backend against an independent server: SkyRL's, in its own environment (docs/backends.md).

Each new length of prompt and reply costs it seconds of compiling, once for each environment: everything here stays within 32 tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tinker import types
from transformers import AutoModelForCausalLM, AutoTokenizer

from serving.tinker.service import close, connect, made
from serving.tinker.version import TinkerVersion, write_version
from store.settings import read_settings
from tests.fixtures import PATINA_TINY
from tests.serving.tinker.test_tinker_engine import POLICY, serving
from tests.tinker.running import SkyrlServer, missing_skyrl, skyrl_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tinker,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing_skyrl()), reason=f"no SkyRL here: {missing_skyrl()}"),
]

HI: list[Any] = [{"role": "user", "content": "Hi"}]
LENGTH = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyrlServer]:
    python = skyrl_python()
    assert python is not None
    made = SkyrlServer(python, PATINA_TINY, tmp_path_factory.mktemp("skyrl"))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def http(server: SkyrlServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serving(server, tmp_path_factory.mktemp("serving"), ready_s=900) as address,
        httpx.Client(base_url=address, timeout=900) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def versions(server: SkyrlServer, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions that were trained there, one after the other, as folders that the trainer would have written."""
    prompt = prompt_ids()
    settings = read_settings({"tinker_base_url": server.url, "model_name": server.name})
    service = connect(settings)
    client = made(service.create_lora_training_client(base_model=server.name, rank=8, seed=1))
    found = []
    for number, token in enumerate((300, 400)):
        full = [*prompt, *[token] * LENGTH]
        weights = [0.0] * (len(prompt) - 1) + [1.0] * LENGTH
        datum = types.Datum(
            model_input=types.ModelInput.from_ints(full[:-1]),
            loss_fn_inputs={"target_tokens": full[1:], "weights": weights},
        )
        for _ in range(12):
            client.forward_backward([datum], "cross_entropy")
            client.optim_step(types.AdamParams(learning_rate=1e-2, beta2=0.95, eps=1e-8)).result()
        path = client.save_weights_for_sampler(f"v{number}").result().path
        folder = tmp_path_factory.mktemp(f"v{number}")
        write_version(folder, TinkerVersion(sampler_path=path, base_model=server.name))
        found.append(folder)
    close(service)
    return found


def prompt_ids() -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(PATINA_TINY)
    ids: list[int] = tokenizer.apply_chat_template(HI, add_generation_prompt=True, return_dict=False)
    return ids


def say(http: httpx.Client, **more: Any) -> httpx.Response:
    body = {
        "messages": HI,
        "max_tokens": LENGTH,
        "temperature": 0,
        "logprobs": True,
        "return_token_ids": True,
    }
    return http.post("/v1/chat/completions", json={**body, **more})


def choice(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()["choices"][0]
    return found


def load(http: httpx.Client, name: str, folder: Path) -> None:
    reply = http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
    assert reply.status_code == 200, reply.text


def test_what_it_can_do_is_found_out(http: httpx.Client) -> None:
    version = http.get("/version").json()
    assert version["logprobs_mode"] == "raw_logprobs"
    notes = " ".join(version["capabilities"]["notes"])
    assert "top_logprobs" in notes
    assert "scores no prompts" not in notes
    assert say(http, top_logprobs=2).status_code == 400


def test_a_reply_is_what_the_model_says_with_its_own_probabilities(http: httpx.Client) -> None:
    reply = say(http)
    found = choice(reply)
    prompt, ids = reply.json()["prompt_token_ids"], found["token_ids"]
    assert prompt == prompt_ids()
    model = AutoModelForCausalLM.from_pretrained(PATINA_TINY, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    assert ids == logits.argmax(-1).tolist()
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()
    reported = [entry["logprob"] for entry in found["logprobs"]["content"]]
    assert reported == pytest.approx(expected, abs=1e-3)


def test_a_seed_a_stop_and_an_end_that_is_switched_off(http: httpx.Client) -> None:
    hot = {"temperature": 2.0, "seed": 5, "ignore_eos": True}
    one, again, *others = (choice(say(http, **{**hot, "seed": seed})) for seed in (5, 5, 6, 7, 8))
    assert one["token_ids"] == again["token_ids"]
    assert any(other["token_ids"] != one["token_ids"] for other in others)
    assert len(one["token_ids"]) == LENGTH
    word = AutoTokenizer.from_pretrained(PATINA_TINY).decode(one["token_ids"][3:4])
    stopped = choice(say(http, **hot, stop=[word]))
    assert word not in stopped["message"]["content"]
    assert stopped["token_ids"] == one["token_ids"][: len(stopped["token_ids"])]


def test_versions_are_served_side_by_side_each_with_its_own_weights(
    http: httpx.Client, versions: list[Path]
) -> None:
    base = choice(say(http))["token_ids"]
    for number, folder in enumerate(versions, start=1):
        load(http, f"{POLICY}@{number}", folder)
    first, second = (choice(say(http, model=f"{POLICY}@{number}"))["token_ids"] for number in (1, 2))
    assert base != first != second
    assert (first[0], second[0]) == (300, 400)
    assert choice(say(http, model=f"{POLICY}@1"))["token_ids"] == first  # a rollback is the same again
    assert choice(say(http, model=POLICY))["token_ids"] == base
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": f"{POLICY}@2"}).status_code == 200
    assert say(http, model=f"{POLICY}@2").status_code == 404


def test_a_checkpoint_that_is_not_there_is_refused(
    http: httpx.Client, server: SkyrlServer, tmp_path: Path
) -> None:
    unknown = "tinker://model_unknown/sampler_weights/v1"
    write_version(tmp_path, TinkerVersion(sampler_path=unknown, base_model=server.name))
    reply = http.post("/v1/load_lora_adapter", json={"lora_name": f"{POLICY}@9", "lora_path": str(tmp_path)})
    assert reply.status_code == 400
    assert choice(say(http))


def test_a_killed_server_is_reported_and_its_successor_serves_the_stored_paths(
    http: httpx.Client, server: SkyrlServer, versions: list[Path]
) -> None:
    """Last, because the server is another one afterwards."""
    load(http, f"{POLICY}@3", versions[0])
    before = [choice(say(http, model=name))["token_ids"] for name in (POLICY, f"{POLICY}@3")]
    server.kill()
    assert say(http).status_code == 503
    assert "is away" in http.get("/stats").json()["server"]["trouble"]
    server.start()
    for _ in range(600):
        if http.get("/health").status_code == 200:
            break
        time.sleep(0.5)
    assert [choice(say(http, model=name))["token_ids"] for name in (POLICY, f"{POLICY}@3")] == before
