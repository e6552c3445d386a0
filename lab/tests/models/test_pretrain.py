"""The recipe of the test model: a saved folder is what was trained, sharper by `LOGIT_SCALE`."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.models import TOY
from lab.models.pretrain import LOGIT_SCALE, REPORT, build, load, save


def test_a_saved_model_has_scaled_logits_and_is_resumed_at_the_scale_of_training(tmp_path: Path) -> None:
    fast = AutoTokenizer.from_pretrained(TOY)
    trained = build(fast, seed=3).eval()
    ids = torch.tensor([fast.encode("What is the capital of France?")])
    with torch.no_grad():
        expected = trained(ids).logits

        save(trained, fast, tmp_path, {})
        saved = AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids).logits
        resumed = load(tmp_path)[1].eval()(ids).logits
        after = trained(ids).logits

    torch.testing.assert_close(saved, LOGIT_SCALE * expected)
    torch.testing.assert_close(resumed, expected)
    torch.testing.assert_close(after, expected)


def test_the_test_model_says_at_which_scale_it_was_saved() -> None:
    report = json.loads((TOY / REPORT).read_text(encoding="utf-8"))

    assert report["logit_scale"] == LOGIT_SCALE
