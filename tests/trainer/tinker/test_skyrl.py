"""Training on SkyRL's Tinker server, an independent implementation of the API. Sequences and shapes are kept small and the same:
every new one is compiled for seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.tinker.running import SkyrlServer, missing_skyrl, skyrl_python
from tests.trainer.gates import quick_calibration
from tests.trainer.tinker.conftest import settings_of
from trainer.advantages import Streams
from trainer.batch import Sample
from trainer.plan import StepPlan
from trainer.protocol import Reply
from trainer.tinker.policy import Saved
from trainer.tinker.step import train
from trainer.tinker.version_trainer import TinkerVersionTrainer

pytestmark = [
    pytest.mark.tinker,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(missing_skyrl()), reason=f"no SkyRL here: {missing_skyrl()}"),
]

PROMPTS = [tuple(range(5, 13)), tuple(range(20, 28))]


@pytest.fixture(scope="module")
def trainer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerVersionTrainer]:
    """With few anchors and no other calibration."""
    python = skyrl_python()
    assert python is not None
    folder = tmp_path_factory.mktemp("skyrl")
    server = SkyrlServer(python, tiny_model, folder, slots=8, rank=8)
    try:
        server.start()
        given = {"lora_rank": 8, "learning_rate": 1e-3, "anchors": 1}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("trainer.version_trainer.calibrate", quick_calibration)
            made = TinkerVersionTrainer(settings_of(server, folder / "home", **given))
        yield made
        made.close()
    finally:
        server.stop()


def plan_of(trainer: TinkerVersionTrainer, passes: int) -> StepPlan:
    """One step a pass, of both samples."""
    settings = trainer._settings.model_copy(update={"method": "rl", "kl_loss_coef": 0.01})
    return replace(StepPlan.of(settings), step_samples=2, passes=passes)


def samples(replies: Sequence[Reply], advantages: Sequence[float]) -> list[Sample]:
    return [
        Sample(
            turn_id=str(number),
            prompt_ids=PROMPTS[number],
            completion_ids=reply.token_ids,
            sampling_logprobs=reply.logprobs,
            streams=Streams(
                advantages=(advantage,) * len(reply.token_ids),
                advantage_mask=(True,) * len(reply.token_ids),
                directive_weight=0.0,
            ),
        )
        for number, (reply, advantage) in enumerate(zip(replies, advantages, strict=True))
    ]


def test_missing_features_are_detected_and_reported(trainer: TinkerVersionTrainer) -> None:
    abilities = trainer.policy.abilities
    assert abilities.means
    assert not abilities.support
    assert "the server's losses are means, which is made up for" in trainer.notes


def test_praise_makes_a_reply_likelier_and_blame_another_less_likely_and_both_can_be_gone_back_from(
    trainer: TinkerVersionTrainer,
) -> None:
    policy = trainer.policy
    replies = policy.sample(PROMPTS, max_tokens=8, seed=1)
    ids = [reply.token_ids for reply in replies]
    before, mask = policy.response_logprobs(PROMPTS, ids)
    for row, reply in enumerate(replies):
        drawn = torch.tensor(reply.logprobs)
        assert float((before[row, : len(drawn)] - drawn).abs().max()) < 1e-3

    policy.begin("patina-tiny@1")
    metrics = train(policy, samples(replies, (1.0, -1.0)), plan_of(trainer, 3), carrier="importance_sampling")
    assert metrics["optimizer_steps"] == 3
    assert metrics["pass_gap"] < 1e-3
    policy.version_files("patina-tiny@1")
    learnt = policy.saved
    after, _ = policy.response_logprobs(PROMPTS, ids)
    assert float((after - before)[0][mask[0]].sum()) > 0
    assert float((after - before)[1][mask[1]].sum()) < 0

    policy.restore({"sampler_path": "", "state_path": ""})
    assert policy.saved == Saved()
    again, _ = policy.response_logprobs(PROMPTS, ids)
    assert float((again - before)[mask].abs().max()) < 1e-3
    policy.restore({"sampler_path": learnt.sampler_path, "state_path": learnt.state_path})
    policy.begin("patina-tiny@2")
    more = train(policy, samples(replies, (1.0, -1.0)), plan_of(trainer, 1), carrier="ppo")
    # It begins where the checkpoint ends, not at the base model.
    gap = (before - after)[mask].double()
    assert more["kl_base_k3"] == pytest.approx(float((gap.expm1() - gap).mean()), rel=0.01)
    policy.give_up()


def test_an_unsupported_deletion_is_only_reported(trainer: TinkerVersionTrainer) -> None:
    (refusal,) = trainer.policy.link.delete(["tinker://model_0/weights/nothing"])
    assert "was not deleted on the server" in refusal
