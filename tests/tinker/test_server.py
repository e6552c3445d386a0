"""Our small Tinker server through the SDK that everybody uses: what it computes, what it keeps, who waits for whom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tinker import types
from transformers import AutoModelForCausalLM

from serving.tinker.service import close, connect, made
from store.settings import Settings, read_settings
from tests.tinker.running import TinkerServer

pytestmark = pytest.mark.slow

PROMPT, COMPLETION = [5, 17, 42, 7], [99, 99, 99]
TOKENS = [*PROMPT, *COMPLETION]
BETA = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    made = TinkerServer(tiny_model, tmp_path_factory.mktemp("tinker"), more=["--logprobs", "raw"])
    try:
        yield made.start()
    finally:
        made.stop()


def settings_of(server: TinkerServer) -> Settings:
    return read_settings({"tinker_base_url": server.url, "model_name": server.name})


@pytest.fixture
def service(server: TinkerServer) -> Iterator[tinker.ServiceClient]:
    client = connect(settings_of(server))
    yield client
    close(client)


def datum(weights: list[float] | None = None) -> types.Datum:
    given = [0.0] * (len(PROMPT) - 1) + [1.0] * len(COMPLETION) if weights is None else weights
    return types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": given},
    )


def logprobs_of(output: Any) -> list[float]:
    return list(output.loss_fn_outputs[0]["logprobs"].tolist())


def train(client: tinker.TrainingClient, steps: int = 3, lr: float = 1e-2) -> None:
    for _ in range(steps):
        client.forward_backward([datum()], "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=lr, **BETA)).result()


def scores(client: tinker.SamplingClient) -> list[float | None]:
    return client.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()  # type: ignore[no-any-return]


def test_a_fresh_adapter_says_what_the_model_says(
    server: TinkerServer, service: tinker.ServiceClient
) -> None:
    client = made(service.create_lora_training_client(base_model=server.name, rank=4, seed=1))
    output = client.forward([datum()], "cross_entropy").result()
    model = AutoModelForCausalLM.from_pretrained(server.name, dtype=torch.float32)
    with torch.no_grad():
        reference = torch.log_softmax(model(torch.tensor([TOKENS])).logits[0], -1)
    expected = reference[:-1].gather(-1, torch.tensor(TOKENS[1:])[:, None])[:, 0].tolist()
    assert logprobs_of(output) == pytest.approx(expected, abs=1e-5)
    assert output.metrics["loss:sum"] == pytest.approx(-sum(expected[len(PROMPT) - 1 :]), abs=1e-4)
    base = made(service.create_sampling_client(base_model=server.name))
    assert scores(base)[1:] == pytest.approx(expected, abs=1e-5)


def test_a_step_teaches_and_the_sampler_has_what_was_trained(
    server: TinkerServer, service: tinker.ServiceClient
) -> None:
    client = made(service.create_lora_training_client(base_model=server.name, rank=4, seed=1))
    before = logprobs_of(client.forward([datum()], "cross_entropy").result())
    train(client, 40)
    after = logprobs_of(client.forward([datum()], "cross_entropy").result())
    # the tiny model's logits are bounded: -0.78 is the most that it can say of any token
    assert sum(after[len(PROMPT) - 1 :]) > -3.0 > sum(before[len(PROMPT) - 1 :])
    path = client.save_weights_for_sampler("v1").result().path
    sampler = made(service.create_sampling_client(model_path=path))
    assert scores(sampler)[1:] == pytest.approx(after, abs=1e-4)
    response = sampler.sample(
        types.ModelInput.from_ints(PROMPT), 2, types.SamplingParams(max_tokens=3, temperature=0.0)
    ).result()
    assert [list(each.tokens) for each in response.sequences] == [COMPLETION, COMPLETION]
    assert response.sequences[0].logprobs == pytest.approx(after[len(PROMPT) - 1 :], abs=1e-4)
    train(client, 2)  # what was saved does not move
    assert scores(sampler)[1:] == pytest.approx(after, abs=1e-4)


def test_losses_add_up_over_tokens_data_and_calls(
    server: TinkerServer, service: tinker.ServiceClient
) -> None:
    client = made(service.create_lora_training_client(base_model=server.name, rank=4, seed=1))
    one = client.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
    assert client.forward([datum(), datum()], "cross_entropy").result().metrics["loss:sum"] == pytest.approx(
        2 * one
    )
    norms = []
    for calls in ([1], [1, 1], [2]):
        for count in calls:
            client.forward_backward([datum()] * count, "cross_entropy")
        norms.append(
            client.optim_step(types.AdamParams(learning_rate=0.0, **BETA)).result().metrics["grad_norm:mean"]
        )
    assert norms[1:] == pytest.approx([2 * norms[0]] * 2, rel=1e-4)


def test_soft_targets_and_losses_of_ones_own_have_the_same_gradient(
    server: TinkerServer, service: tinker.ServiceClient
) -> None:
    """The mean of two targets, once as 2-D targets with weights and once as a loss written in torch."""
    others = [(token + 1) % 500 for token in TOKENS[1:]]
    length = len(others)
    soft = types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_torch(torch.tensor([TOKENS[1:], others]).T.contiguous()),
            "weights": types.TensorData.from_torch(torch.full((length, 2), 0.5)),
        },
    )

    def norm(client: tinker.TrainingClient) -> float:
        found = client.optim_step(types.AdamParams(learning_rate=0.0, **BETA)).result()
        return float(found.metrics["grad_norm:mean"])

    client = made(service.create_lora_training_client(base_model=server.name, rank=4, seed=1))
    client.forward_backward([soft], "cross_entropy")
    expected = norm(client)

    def half(data: Any, logprobs: Any) -> Any:
        loss = -0.5 * sum(each.sum() for each in logprobs)
        return loss, {}

    def hard(targets: list[int]) -> types.Datum:
        return types.Datum(
            model_input=types.ModelInput.from_ints(TOKENS[:-1]), loss_fn_inputs={"target_tokens": targets}
        )

    client.forward_backward_custom([hard(TOKENS[1:]), hard(others)], half).result()
    assert norm(client) == pytest.approx(expected, rel=1e-4)


def test_the_likeliest_ids_of_a_prompt_are_told(server: TinkerServer, service: tinker.ServiceClient) -> None:
    base = made(service.create_sampling_client(base_model=server.name))
    prompt, params = types.ModelInput.from_ints(TOKENS), types.SamplingParams(max_tokens=1)
    response = base.sample(
        prompt, 1, params, include_prompt_logprobs=True, topk_prompt_logprobs=400
    ).result()  # fmt: skip
    assert len(response.topk_prompt_logprobs) == len(TOKENS)
    for place, token in enumerate(TOKENS[1:], 1):
        top = response.topk_prompt_logprobs[place]
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
        assert dict(top)[token] == pytest.approx(response.prompt_logprobs[place], abs=1e-5)
    tail = base.compute_logprobs(prompt, prompt_logprobs_last_n=2).result()
    assert [each is None for each in tail] == [True] * (len(TOKENS) - 2) + [False] * 2


def test_a_seed_a_stop_and_an_end_that_is_switched_off(
    server: TinkerServer, service: tinker.ServiceClient
) -> None:
    base = made(service.create_sampling_client(base_model=server.name))
    prompt = types.ModelInput.from_ints(PROMPT)

    def say(**params: Any) -> Any:
        return base.sample(
            prompt, 1, types.SamplingParams(**{"max_tokens": 12, **params}), topk_sample_logprobs=2
        ).result()

    one, same, other = [say(seed=seed).sequences[0] for seed in (1, 1, 2)]
    assert list(one.tokens) == list(same.tokens) != list(other.tokens)
    stopped = say(seed=1, stop=[int(one.tokens[3])]).sequences[0]
    assert (stopped.stop_reason, list(stopped.tokens)) == (
        "stop",
        list(one.tokens[: list(one.tokens).index(one.tokens[3]) + 1]),
    )
    assert len(say(stop=[]).sequences[0].tokens) == 12
    assert len(one.topk_logprobs) == len(one.tokens)


def test_training_goes_on_where_it_was_saved_after_a_death(tiny_model: Path, tmp_path: Path) -> None:
    """Two steps, save, kill -9, restore, two steps: the same as four steps, Adam's memory included."""
    server = TinkerServer(tiny_model, tmp_path).start()
    try:
        service = connect(settings_of(server))
        whole = made(service.create_lora_training_client(base_model=server.name, rank=4, seed=1))
        train(whole, 2)
        path = whole.save_state("half").result().path
        bare = made(service.create_training_client_from_state(path))
        for client in (whole, bare):
            train(client, 2)
        expected, without = [
            logprobs_of(each.forward([datum()], "cross_entropy").result()) for each in (whole, bare)
        ]
        server.kill()
        server.start()
        close(service)
        again = connect(settings_of(server))
        restored = made(again.create_training_client_from_state_with_optimizer(path))
        train(restored, 2)
        found = logprobs_of(restored.forward([datum()], "cross_entropy").result())
        assert found == pytest.approx(expected, abs=1e-4)
        assert without != pytest.approx(expected, abs=1e-3)  # so that the test can tell
        with pytest.warns(FutureWarning):  # tinker.RestClient() never closes its connections
            rest = again.create_rest_client()
        assert [each.tinker_path for each in rest.list_checkpoints(whole.model_id).result().checkpoints] == [
            path
        ]
        rest.delete_checkpoint_from_tinker_path(path).result()
        assert rest.list_checkpoints(whole.model_id).result().checkpoints == []
        close(again)
    finally:
        server.stop()


def test_an_abandoned_sample_is_stopped_and_others_do_not_wait_for_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    server = TinkerServer(tiny_model, tmp_path, more=["--token-s", "0.5"]).start()
    try:
        service = connect(settings_of(server))
        base = made(service.create_sampling_client(base_model=server.name))
        prompt = types.ModelInput.from_ints(PROMPT)
        # a quarter of an hour: beyond the time limit of a test
        endless = base.sample(prompt, 1, types.SamplingParams(max_tokens=1800, stop=[]))
        base.sample(prompt, 1, types.SamplingParams(max_tokens=2)).result()
        client = made(service.create_lora_training_client(base_model=server.name, rank=4, seed=1))
        train(client, 1)
        assert not endless.future().done()
        endless.future().cancel()
        time.sleep(0.5)
        base.sample(prompt, 1, types.SamplingParams(max_tokens=2)).result()
        close(service)
    finally:
        server.stop()
