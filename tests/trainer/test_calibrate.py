"""What is measured of a base model at its first start, on the test model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from store.calibration import FILE, Calibration, read_calibration, write_calibration
from tests.fixtures import PATINA_TINY
from trainer.calibrate import ANCHOR_TOKENS, calibrate
from trainer.canaries import load_canaries
from trainer.gate import GateMeasures
from trainer.policy import LocalPolicy
from trainer.wish_meter import NEUTRAL, WishMeter
from wire.wish_text import PLACES


class KnownGate:
    def base(self) -> GateMeasures:
        return GateMeasures(facts=0.5, right={"facts": [1, 3]})


@pytest.fixture(scope="module")
def policy() -> LocalPolicy:
    return LocalPolicy(str(PATINA_TINY), rank=4, learning_rate=1e-3, seed=0, device="cpu")


@pytest.fixture(scope="module")
def found(policy: LocalPolicy) -> Calibration:
    canaries = load_canaries(str(PATINA_TINY))
    return calibrate(policy, "digest", canaries, KnownGate(), anchors=5, seed=1)  # type: ignore[arg-type]  # what it reads of a gate


def test_wishes_stand_where_the_model_obeys_best_and_can_still_be_asked_for_the_opposite(
    found: Calibration,
) -> None:
    assert set(found.obeyed) == set(PLACES)
    totals = {place: sum(shares) for place, shares in found.obeyed.items()}
    assert totals[found.placement] == max(totals.values()) > 1.5
    assert all(0.0 <= share <= 1.0 for shares in found.obeyed.values() for share in shares)


def test_the_bounds_of_wishes_are_the_models_own(found: Calibration, policy: LocalPolicy) -> None:
    meter = WishMeter(policy, load_canaries(str(PATINA_TINY)).plain_questions(), found.placement)
    assert found.neutral == pytest.approx(max(meter.size(words) for words in NEUTRAL), abs=1e-4)
    short = [
        meter.cosine("Please keep your answers short.", other)
        for other in ("Be brief.", "I want it free of emoji.")
    ]
    assert short[0] > found.same_wish > short[1]


def test_without_two_wordings_only_the_same_words_are_one_wish(policy: LocalPolicy) -> None:
    bare = replace(load_canaries(str(PATINA_TINY)), instructions={})
    known = calibrate(policy, "digest", bare, KnownGate(), anchors=0, seed=1)  # type: ignore[arg-type]  # as above
    assert (known.same_wish, known.placement) == (1.0, PLACES[0])


def test_anchors_are_replies_of_the_base_model_to_prompts_with_an_instruction(
    found: Calibration, policy: LocalPolicy
) -> None:
    assert len(found.anchors) == 5
    for message, reply in found.anchors:
        assert message
        assert 0 < len(reply) <= ANCHOR_TOKENS
    trained = load_canaries(str(PATINA_TINY)).trained_instructions()
    assert all(message.endswith(text) for (message, _), text in zip(found.anchors, trained, strict=False))
    assert found.gate["right"] == {"facts": [1, 3]}


def test_it_is_kept_by_the_digest_of_the_model(found: Calibration, tmp_path: Path) -> None:
    found = replace(found, gate={"facts": 0.5}, obeyed={"behind": [0.5, 1.0]}, anchors=[("Why?", [5, 2])])
    write_calibration(tmp_path, found)
    assert read_calibration(tmp_path, "digest") == found
    assert read_calibration(tmp_path, "another") is None
    (tmp_path / FILE).write_text("{")
    assert read_calibration(tmp_path, "digest") is None
