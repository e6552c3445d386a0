"""The trainer with its weights on a Tinker server. What is not about weights is `trainer.version_trainer.BaseVersionTrainer`'s."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from serving.tinker.service import base_model, supported_models
from serving.tinker.version import FILE, read_version
from store.errors import AdapterError, AlignmentError, ConfigError, UpstreamError
from store.lifecycle import DropReason
from store.settings import Settings
from store.values import BASE_VERSION, Json, LogprobMode, ScoredTurn, adapter_name
from trainer.batch import GREEDY_BELOW, Sample
from trainer.checkpoint import remove_version
from trainer.protocol import Edit, Outcome, TurnRefusal
from trainer.step import StepPlan
from trainer.tinker.capabilities import find_capabilities
from trainer.tinker.link import TinkerConnection
from trainer.tinker.policy import TinkerPolicy
from trainer.tinker.step import train
from trainer.version_trainer import BaseVersionTrainer


class TinkerVersionTrainer(BaseVersionTrainer[TinkerPolicy]):
    """The policy on a Tinker server, between steps.

    Raises:
        ConfigError: no such model there; or it cannot do what the method needs.
        UpstreamError: the server does not answer.
        AdapterError: ``--resume-from-ckpt`` names no version of this model.
    """

    #: Each question is several requests.
    wish_questions = 0.34

    def __init__(self, settings: Settings) -> None:
        _check(settings)
        self._link = TinkerConnection(settings)
        name, context = base_model(settings)
        policy = TinkerPolicy(settings, self._link, name, context, top_k=settings.learning.top_k)
        try:
            policy.abilities = find_capabilities(self._link, settings, name, policy.training())
        except BaseException:
            self._link.drop()
            raise
        if settings.method == "sdpo" and policy.support == "token":
            self._link.drop()
            raise ConfigError(
                f"--method sdpo compares whole distributions, and the Tinker server at {self._link.address} tells only "
                "single tokens: use --method combine or opd, or a server with topk_prompt_logprobs and soft targets"
            )
        super().__init__(settings, StepPlan.of(settings), policy)

    @property
    def notes(self) -> tuple[str, ...]:
        abilities, support = self._policy.abilities, self._policy.support
        size = self._settings.learning.top_k
        found = [
            {
                "student": f"the directive term is on the policy's {size} likeliest tokens",
                "teacher": f"the directive term is on the teacher's {size} likeliest tokens",
                "token": "the directive term is on the sampled tokens only: the Tinker server does not tell the likeliest ones",
            }[support]
        ]
        if self._plan.residual and support != "token" and not abilities.named:
            found.append(
                "the teacher carries nothing of what was learnt: the server does not tell chosen tokens"
            )
        if not abilities.top:
            found.append("entropy and KL at the gate are estimates on single tokens")
        if abilities.means:
            found.append("the server's losses are means, which is made up for")
        return tuple(found)

    def check(self) -> None:
        """Raises: UpstreamError when the server is away. When it is back it will know nothing of our sessions."""
        try:
            self._link.check()
        except UpstreamError:
            self._policy.give_up()
            self._link.drop()
            raise

    def attempt(
        self,
        turns: Sequence[ScoredTurn],
        replay: Sequence[ScoredTurn],
        recent: Sequence[int],
        number: int,
        remembered: Sequence[ScoredTurn] = (),
        edits: Sequence[Edit] = (),
    ) -> Outcome:
        """See `BaseVersionTrainer.attempt`; whatever goes wrong, the next attempt begins with a client of its own."""
        try:
            ready, odd = self._at_temperature_one(turns)
            again, _ = self._at_temperature_one(replay)
            outcome = super().attempt(ready, again, recent, number, remembered, edits)
        except BaseException:
            self._policy.give_up()
            raise
        return replace(outcome, refused={**outcome.refused, **odd})

    def _train(self, samples: Sequence[Sample], number: int) -> dict[str, float]:
        self._policy.begin(adapter_name(self.name, number))
        return train(self._policy, samples, self._plan, carrier=self._settings.loss_fn)

    def _backend_metrics(self) -> Json:
        """Where the new version is on the server, and how it was made."""
        return {"tinker": {**asdict(self._policy.saved), "support": self._policy.support}}

    def _at_temperature_one(
        self, turns: Sequence[ScoredTurn]
    ) -> tuple[list[ScoredTurn], Mapping[str, TurnRefusal]]:
        """The turns with log-probabilities at temperature 1, the only one at which a prompt is scored.

        What was reported at another temperature is computed again by the version that sampled it.
        """
        ready: dict[str, ScoredTurn] = {}
        refused: dict[str, TurnRefusal] = {}
        asked: dict[int, list[ScoredTurn]] = {}
        for turn in turns:
            is_known = (
                turn.logprob_mode is LogprobMode.RAW
                or turn.temperature == 1.0
                or turn.temperature < GREEDY_BELOW
            )
            if is_known or not (turn.prompt_token_ids and turn.completion.token_ids):
                ready[turn.turn_id] = replace(turn, temperature=1.0, logprob_mode=LogprobMode.RAW)
            else:
                asked.setdefault(turn.adapter_version, []).append(turn)
        for version, some in asked.items():
            try:
                path = self._sampler_path(version)
                values = self._policy.logprobs_of_version(
                    path, [t.prompt_token_ids for t in some], [t.completion.token_ids for t in some]
                )
            except (AdapterError, AlignmentError) as exc:
                refused |= {t.turn_id: TurnRefusal(reason=DropReason.STALE, detail=str(exc)) for t in some}
                continue
            for row, turn in enumerate(some):
                own = tuple(values[row, : len(turn.completion.token_ids)].tolist())
                ready[turn.turn_id] = replace(
                    turn,
                    temperature=1.0,
                    logprob_mode=LogprobMode.RAW,
                    completion=replace(turn.completion, sampling_logprobs=own),
                )
        return [ready[turn.turn_id] for turn in turns if turn.turn_id in ready], refused

    def _sampler_path(self, version: int) -> str:
        if version == BASE_VERSION:
            return ""
        if version == self.version:
            return self._policy.saved.sampler_path
        name = adapter_name(self.name, version)
        for folder in sorted(self._settings.adapters_folder_of(self.name).glob(f"{name}.*")):
            return read_version(folder).sampler_path
        raise AdapterError(f"version {version}, which sampled it, is not there any more")

    def remove(self, folder: Path) -> None:
        """Remove a version: its checkpoints on the server as far as the server lets us, then its folder."""
        for refusal in remove_with_checkpoints(self._link, folder):
            print(f"patina: {refusal}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End our sessions, so that the server need not wait for them to go stale."""
        self._link.drop()


def _check(settings: Settings) -> None:
    """Refuse what a Tinker server cannot do. Raises: ConfigError."""
    if settings.learning.teacher == "ema" and not settings.teacher_model_name:
        raise ConfigError("--teacher ema cannot be had with --backend tinker: use base or live")
    if settings.teacher_model_name:
        names = [model.model_name for model in supported_models(settings)]
        if names and settings.teacher_model_name not in names:
            raise ConfigError(
                f"the Tinker server has no model {settings.teacher_model_name} to teach (--teacher-model-name)"
            )


def remove_with_checkpoints(link: TinkerConnection, folder: Path) -> list[str]:
    """Remove a version's checkpoints on the server and its folder; returns what stays on the server, with the reason."""
    refusals: list[str] = []
    if (folder / FILE).exists():  # a version of another backend has nothing there
        try:
            version = read_version(folder)
        except AdapterError as exc:
            refusals = [f"{exc}: nothing is deleted on the Tinker server for it"]
        else:
            refusals = link.delete([path for path in (version.sampler_path, version.state_path) if path])
    remove_version(folder)
    return refusals
