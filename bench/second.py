"""A second wish straight behind a narrow first one: `python -m bench.second --seeds 3 [--set key=value ...]`.

What `bench.loop` does to a whole house, in one process: eight complaints about length and emoji on three questions, a batch of four at a time,
then eight that ask for Spanish on the same three. A batch whose version the gate rejects is complained about once more, as the
trainer's worker does it, then it is used up. Prints how far each version went (KL, nats a token) or why it was rejected.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from bench.loop import COMPLAINTS, QUESTIONS
from evals.pupil import Pupil
from evals.study import parse_tried
from store.errors import PatinaError
from store.settings import Settings, read_settings

#: Complaints of a batch; batches of a wish; attempts at a batch.
BATCH, BATCHES, ATTEMPTS = 4, 2, 2


def play(settings: Settings) -> list[list[tuple[float, tuple[str, ...]]]]:
    """Return of each wish its attempts: (KL to the version before, why it was rejected)."""
    pupil = Pupil(settings)
    wishes = []
    for number, words in enumerate(COMPLAINTS):
        said = []
        for i in range(BATCH * BATCHES):
            messages = [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}]
            ids = pupil.policy.render(messages)
            (reply,) = pupil.sample([ids], seed=1_000 * settings.seed + 10 * number + i)
            said.append(pupil.say(session=f"{number}-{i}", messages=messages, prompt_ids=ids, reply=reply))
        attempts = []
        for start in range(0, len(said), BATCH):
            for _ in range(ATTEMPTS):
                for one in said[start : start + BATCH]:
                    pupil.hear(one, words)
                lesson = pupil.learn()
                if lesson is None or lesson.outcome.written is None:
                    break  # what is said already has nothing to complain about
                attempts.append((float(lesson.outcome.metrics["kl_step"]), tuple(lesson.outcome.rejected)))
                if not lesson.outcome.rejected:
                    break
        wishes.append(attempts)
    return wishes


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.second", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings over the defaults"
    )
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    tried = rejected = published = 0
    try:
        more: dict[str, Any] = {key: values[0] for key, values in parse_tried(given.set).items()}
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory(prefix="patina-second-") as home:
                wishes = play(read_settings({"batch_size": BATCH, **more, "seed": seed, "home": home}))
            for number, attempts in enumerate(wishes, 1):
                print(
                    f"seed {seed}, wish {number}: " + " | ".join(_told(*one) for one in attempts), flush=True
                )
                tried += len(attempts)
                rejected += sum(bool(why) for _, why in attempts)
            published += any(not why for _, why in wishes[1])
    except PatinaError as error:
        print(f"patina: {error}", file=sys.stderr)
        return 2
    print(
        f"rejected {rejected} of {tried}; the second wish had a version on {published} of {given.seeds} seeds"
    )
    return 0


def _told(kl: float, rejected: Sequence[str]) -> str:
    return f"KL {kl:.2f}" + (f", rejected: {rejected[0]}" if rejected else "")


if __name__ == "__main__":
    sys.exit(main())
