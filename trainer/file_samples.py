"""Uploaded examples as samples: token ids by the model's own chat template, and a teacher that is sure of each token of the reply.

The forward KL divergence from that teacher is the cross-entropy of the reply, so supervised examples pass through the same objective as wishes.
Preferences (DPO) are two samples, whose advantages are set before each step (`trainer.step.weigh_preferences`).

Shapes: C completion tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from store.errors import AlignmentError
from store.values import Json, TuningData
from trainer.advantages import build_streams, directive_streams
from trainer.batch import ReplyPreference, Sample, SampleKind
from trainer.policy import LocalPolicy
from trainer.protocol import TeacherScore, Weights
from trainer.step import whole_logprobs
from wire.training_file import Example, read_examples


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSamples:
    """What uploaded files teach, and counts for a version's metrics."""

    samples: Sequence[Sample] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


def read_files(policy: LocalPolicy, files: Sequence[TuningData]) -> FileSamples:
    """Return the samples of files; an example that is too long, or that the template does not render as a reply, is left out and counted."""
    samples: list[Sample] = []
    left_out = 0
    for file in files:
        _, examples = read_examples(file.content, most_lines=len(file.content) + 1)
        for number, example in enumerate(examples):
            name = f"{file.file_id}-{number}"
            if example.rejected is None:
                found = _supervised(policy, example, name, file.epochs)
            else:
                found = _preference(policy, example, example.rejected, name, file)
            left_out += not found
            samples += found
    tokens = sum(len(one.completion_ids) * one.passes for one in samples)
    numbers = {"examples_left_out": float(left_out), "trained_tokens": float(tokens)}
    return FileSamples(samples=samples, numbers=numbers if files else {})


def _supervised(policy: LocalPolicy, example: Example, name: str, epochs: int) -> list[Sample]:
    ids = _reply_ids(policy, example, example.reply)
    if ids is None:
        return []
    prompt, reply = ids
    column = torch.tensor(reply)[:, None]
    certain = TeacherScore(
        logprobs=torch.zeros(len(reply)), support_ids=column, support_logprobs=torch.zeros(len(reply), 1)
    )
    return [
        Sample(
            turn_id=name,
            kind=SampleKind.EXAMPLE,
            prompt_ids=prompt,
            completion_ids=reply,
            sampling_logprobs=None,
            teacher=certain,
            streams=directive_streams(completion_length=len(reply), alpha=0.0),
            passes=epochs,
        )
    ]


def _preference(
    policy: LocalPolicy, example: Example, rejected: Json, name: str, file: TuningData
) -> list[Sample]:
    """The better and the worse reply, each a sample; the base model is read here, the present weights before each step."""
    better, worse = (_reply_ids(policy, example, one) for one in (example.reply, rejected))
    if better is None or worse is None:
        return []
    prompt, replies = better[0], (better[1], worse[1])
    base = whole_logprobs(policy, prompt, replies, Weights.BASE)
    return [
        Sample(
            turn_id=f"{name}-{'better' if sign > 0 else 'worse'}",
            kind=SampleKind.EXAMPLE,
            prompt_ids=prompt,
            completion_ids=replies[mine],
            sampling_logprobs=None,
            streams=build_streams(sign, baseline=0.0, completion_length=len(replies[mine])),
            passes=file.epochs,
            preference=ReplyPreference(
                sign=sign, other_ids=replies[1 - mine], beta=file.beta, base_gap=base[mine] - base[1 - mine]
            ),
        )
        for mine, sign in enumerate((1, -1))
    ]


def _reply_ids(
    policy: LocalPolicy, example: Example, reply: Json
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ids of the prompt and of a reply up to the token that ends it; None: they cannot be trained on."""
    message = {name: value for name, value in reply.items() if name != "weight"}
    try:
        prompt = policy.render(example.messages, example.tools or None)
        whole = policy.render(
            [*example.messages, message], example.tools or None, add_generation_prompt=False
        )
    except AlignmentError:
        return None
    if whole[: len(prompt)] != prompt:
        return None
    ids = whole[len(prompt) :]
    end = next((place for place, token in enumerate(ids) if token in policy.end_ids), len(ids) - 1)
    found = tuple(prompt), tuple(ids[: end + 1])
    return found if found[1] and len(whole) <= policy.max_context else None
