"""What a policy does on questions nobody ever asked it, and whether it still obeys.

`plan_probes` and `judge_replies` are pure; between them anything may produce the replies: `measure` asks a running house
through its public API, the fast loop of `evals.learning` asks a policy in its own process. The same questions and wordings are
used at every measurement of a run, so that differences are the policy's.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evals.client import House
from evals.pools import PROBES, require_disjoint
from evals.users import violations
from models.questions import Question
from models.styles import STYLES
from store.errors import ConfigError, UpstreamError

#: Requests in flight at once.
CONCURRENCY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One fresh conversation of one message.

    Attributes:
        opposite_of: the preference whose opposite the message explicitly asks for; None: it asks for nothing.
        seed: of the sampling.
    """

    question: Question
    text: str
    opposite_of: str | None
    seed: int

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.text}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Shares in [0, 1].

    Attributes:
        compliance: of replies that meet all preferences, though nothing was asked of them.
        by_preference: the same for each.
        facts: of the same replies, those that state the right fact.
        opposite_obeyed: of replies to messages that ask for the opposite of a preference, those that obey; mean over
            preferences. None when not measured.
        samples: a few (question, reply) pairs, to look at.
    """

    questions: int
    compliance: float
    by_preference: Mapping[str, float]
    facts: float
    opposites: int
    opposite_obeyed: float | None
    by_opposite: Mapping[str, float]
    mean_words: float
    distinct: float
    seconds: float = 0.0
    samples: tuple[tuple[str, str], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        low, high = wilson(self.compliance, self.questions)
        return {**asdict(self), "compliance_95": [low, high]}


def plan_probes(
    preferences: Sequence[str], *, questions: int, opposites: int = 0, seed: int = 0
) -> tuple[Probe, ...]:
    """Return the probes of a run: the same for the same arguments, and a smaller plan's questions are those of a larger one.

    Args:
        questions: fresh questions that ask for no manner.
        opposites: questions that ask for the opposite of a preference, in held-out wording, shared out among the preferences.

    Raises:
        ConfigError: more than there are.
    """
    require_disjoint()
    if not 1 <= questions <= len(PROBES) or opposites > len(PROBES):
        raise ConfigError(f"there are {len(PROBES)} probe questions, not {max(questions, opposites)}")
    rng = random.Random(f"probes/{seed}")
    order = rng.sample(PROBES, len(PROBES))
    plain = [
        Probe(question=question, text=question.text, opposite_of=None, seed=seed * 10_000 + index)
        for index, question in enumerate(order[:questions])
    ]
    contrary = []
    for index, question in enumerate(reversed(order[len(order) - opposites :])):
        name = preferences[index % len(preferences)]
        opposite = STYLES[name].opposite
        if opposite is None:
            continue
        wordings = STYLES[opposite].heldout_instructions
        wording = wordings[index // len(preferences) % len(wordings)]
        contrary.append(
            Probe(
                question=question,
                text=f"{question.text} {wording}",
                opposite_of=name,
                seed=seed * 10_000 + 5_000 + index,
            )
        )
    return (*plain, *contrary)


def judge_replies(
    preferences: Sequence[str], probes: Sequence[Probe], replies: Sequence[str], *, seconds: float = 0.0
) -> Measurement:
    """Return what the replies, in the order of the probes, amount to."""
    plain = [(p, reply) for p, reply in zip(probes, replies, strict=True) if p.opposite_of is None]
    missed = [violations(preferences, reply) for _, reply in plain]
    by_opposite: dict[str, float] = {}
    for name in preferences:
        opposite = STYLES[name].opposite
        obeyed = [
            STYLES[opposite].complies(reply)
            for p, reply in zip(probes, replies, strict=True)
            if opposite is not None and p.opposite_of == name
        ]
        if obeyed:
            by_opposite[name] = _share(obeyed)
    return Measurement(
        questions=len(plain),
        compliance=_share([not names for names in missed]),
        by_preference={name: _share([name not in names for names in missed]) for name in preferences},
        facts=_share([p.question.is_correct(reply) for p, reply in plain]),
        opposites=len(probes) - len(plain),
        opposite_obeyed=sum(by_opposite.values()) / len(by_opposite) if by_opposite else None,
        by_opposite=by_opposite,
        mean_words=sum(len(re.findall(r"\w+", reply)) for _, reply in plain) / len(plain),
        distinct=len({reply for _, reply in plain}) / len(plain),
        seconds=seconds,
        samples=tuple((p.text, reply) for p, reply in plain[:3]),
    )


async def measure(
    house: House,
    preferences: Sequence[str],
    *,
    questions: int = 48,
    opposites: int = 0,
    seed: int = 0,
    concurrency: int = CONCURRENCY,
    write_s: float = 10.0,
) -> Measurement:
    """Measure a running house. The probes opt out of training, and that they did is checked.

    Args:
        write_s: how much later than its reply a probe's row may be seen.

    Raises:
        UpstreamError: the house failed, or took probes for conversations to learn from.
    """
    probes = plan_probes(preferences, questions=questions, opposites=opposites, seed=seed)
    started = time.monotonic()
    before = opted_out(await house.status())
    gate = asyncio.Semaphore(concurrency)

    async def ask(probe: Probe) -> str:
        async with gate:
            return (await house.chat(probe.messages, trains=False, seed=probe.seed)).text

    replies = await asyncio.gather(*(ask(probe) for probe in probes))
    await require_no_trace(house, before + len(probes), write_s)
    return judge_replies(preferences, probes, replies, seconds=time.monotonic() - started)


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share observed in ``count`` trials (Wilson 1927)."""
    if count < 1:
        return 0.0, 1.0
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


async def require_no_trace(house: House, expected: int, write_s: float = 10.0) -> None:
    """A probe that trains would make the policy know what it is measured on."""
    give_up = time.monotonic() + write_s
    # A reply may arrive a moment before its row when the record is slow.
    while (found := opted_out(await house.status())) < expected:
        if time.monotonic() > give_up:
            raise UpstreamError(
                f"{expected - found} probes were recorded as conversations although they said X-Patina-Train: off"
            )
        await asyncio.sleep(0.2)


def opted_out(status: Mapping[str, Any]) -> int:
    return int((status.get("drop_reasons") or {}).get("opted_out", 0))


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits) if hits else 0.0
