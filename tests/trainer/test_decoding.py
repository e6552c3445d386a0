"""Decoders: the merged one gives the model's own hidden states, with an adapter, for padded rows, after rows have left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from trainer.decoding import MergedDecoder, NetworkDecoder, largest_difference, supports
from trainer.policy import LocalPolicy, Weights

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def plain(layer: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    assert isinstance(layer, torch.nn.Linear)
    return layer.weight, layer.bias


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),  # biases, and no norm of queries and keys
    ],
    ids=["llama", "qwen2"],
)
def test_the_merged_decoder_gives_the_hidden_states_of_models_of_its_form(make: object) -> None:
    torch.manual_seed(1)
    network = make().eval()  # type: ignore[operator]
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    assert supports(network)
    assert largest_difference(network, MergedDecoder(network, plain)) < 1e-5


def test_a_decoder_with_other_weights_is_found_out(tiny_model: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    decoder = MergedDecoder(network, lambda layer: (plain(layer)[0] * 1.1, plain(layer)[1]))
    assert largest_difference(network, decoder) > 1e-2


def test_a_model_in_half_precision_or_of_another_form_is_not_merged(tiny_model: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    assert not supports(network)
    capped = LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))
    assert not supports(capped)


@torch.no_grad()
def test_rows_that_stay_go_on_as_if_the_others_had_never_been_there(tiny_model: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    ids = torch.arange(5, 20).reshape(3, 5)
    seen = torch.ones_like(ids)
    seen[0, :2] = 0
    tokens = torch.tensor([7, 9, 11])
    for decoder in (MergedDecoder(network, plain), NetworkDecoder(network)):
        decoder.begin(ids, seen, 8)
        decoder.step(tokens)
        whole = decoder.step(tokens)
        decoder.begin(ids, seen, 8)
        decoder.step(tokens)
        rows = torch.tensor([2, 0])
        assert decoder.keep(rows)
        torch.testing.assert_close(decoder.step(tokens[rows]), whole[rows], atol=1e-5, rtol=0)


def test_a_trained_adapter_is_sampled_alike_by_both_decoders(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        for name, parameter in policy._trainable.items():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    assert policy._merges
    prompts = [[5, 9, 30, 12, 7], [44, 3, 8, 90], [17]]
    for weights in (Weights.STUDENT, Weights.BASE):
        merged = policy.sample(prompts, max_tokens=12, seed=3, weights=weights)
        with monkeypatch.context() as patch:
            patch.setattr(policy, "_merges", False)
            own = policy.sample(prompts, max_tokens=12, seed=3, weights=weights)
        assert [reply.token_ids for reply in merged] == [reply.token_ids for reply in own]
        for one, other in zip(merged, own, strict=True):
            torch.testing.assert_close(
                torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=1e-4, rtol=0
            )
