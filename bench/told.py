"""What the base model makes of hints, by where they stand: `python -m bench.told --wishes concise,no_emoji spanish --counts 1 4`.

Complaints of a simulated person about a wish (one that names all of it, or a part) are put before the base model in several places, each time with
a question nobody complained about. What it answers is what a teacher of that kind can teach. A wish written `a>b` arrives in turn: the
older half of the complaints is about a, the newer about b, both are asked of the reply. `corrections` are no wish: each is right about
a question other than the one that is asked ("No, it is Canberra."), and what is to be seen is whether they do harm there.

Trains nothing. One line for each place: share of replies as wished, share with the right fact.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from evals.pools import ASKED
from evals.preferences import complaint, parse_preferences, violations
from evals.subjects import memory_prompt
from models.questions import Question
from store.errors import PatinaError
from store.settings import read_settings
from trainer.hindsight import after_hints, with_hint
from trainer.policy import LocalPolicy
from trainer.protocol import Weights

Messages = Sequence[Mapping[str, Any]]
_CORRECTIONS = ("No, it is {answer}.", "That is wrong, it's {answer}.", "Wrong, the answer is {answer}.")


def _in_system(messages: Messages, hints: Sequence[str]) -> list[Mapping[str, Any]]:
    return [{"role": "system", "content": memory_prompt(hints)}, *messages]


#: Name of a place -> the conversation with the hints in it, oldest first.
PLACES: Mapping[str, Callable[[Messages, Sequence[str]], Sequence[Mapping[str, Any]]]] = {
    "the newest alone, behind the question": lambda m, hints: with_hint(m, hints[-1], is_reaction=True),
    "all behind the question": lambda m, hints: with_hint(m, " ".join(hints), is_reaction=True),
    "system prompt": _in_system,
    "turns before the question": after_hints,
    "turns, the newest behind the question": lambda m, hints: after_hints(
        with_hint(m, hints[-1], is_reaction=True), hints[:-1]
    ),
}


def _correction(task: Question, rng: random.Random) -> str:
    """What somebody says who was told a wrong answer to another question."""
    other = rng.choice([question for question in ASKED if question.fact != task.fact])
    return rng.choice(_CORRECTIONS).format(answer=other.answer)


def hear(
    policy: LocalPolicy, phases: Sequence[Sequence[str]], count: int, questions: int
) -> dict[str, tuple[float, float]]:
    """Place -> (share as wished, share right), over so many questions with ``count`` hints each; no phases: corrections."""
    rng = random.Random(f"told/{phases}/{count}")
    asked = rng.sample(ASKED, questions)
    hints = [  # the same for every place
        [complaint(phases[i * len(phases) // count], rng, names_all=0.5) for i in range(count)]
        if phases
        else [_correction(task, rng) for _ in range(count)]
        for task in asked
    ]
    wants = [name for phase in phases for name in phase]
    found = {}
    for place, put in PLACES.items():
        prompts = [
            policy.render(put([{"role": "user", "content": task.text}], told))
            for task, told in zip(asked, hints, strict=True)
        ]
        replies = policy.sample(prompts, max_tokens=96, temperature=1.0, seed=1, weights=Weights.BASE)
        texts = [policy.decode(reply.token_ids) for reply in replies]
        pairs = list(zip(asked, texts, strict=True))
        found[place] = (
            sum(not violations(wants, task, text) for task, text in pairs) / questions,
            sum(task.is_correct(text) for task, text in pairs) / questions,
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.told", description=__doc__)
    parser.add_argument(
        "--wishes", nargs="+", default=["concise,no_emoji", "spanish", "concise>spanish", "corrections"]
    )
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--questions", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    try:
        wishes = {
            text: [] if text == "corrections" else [parse_preferences(part) for part in text.split(">")]
            for text in given.wishes
        }
        with tempfile.TemporaryDirectory(prefix="patina-told-") as home:
            settings = read_settings({"home": home})
            policy = LocalPolicy(
                settings.model_path,
                rank=settings.lora_rank,
                learning_rate=settings.resolved_learning_rate,
                seed=0,
            )
            for text, phases in wishes.items():
                for count in given.counts:
                    for place, (met, right) in hear(policy, phases, count, given.questions).items():
                        print(
                            f"{text}, {count} hints, {place}: as wished {met:.2f}, facts {right:.2f}",
                            flush=True,
                        )
    except PatinaError as error:
        print(f"patina: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
