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
from trainer.cost import MOST
from trainer.plan import StepPlan
from trainer.protocol import Outcome, TurnRefusal, VersionJob
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

    def __init__(self, settings: Settings) -> None:
        _check(settings)
        self._link = TinkerConnection(settings)
        name, context = base_model(settings)
        policy = TinkerPolicy(settings, self._link, name, context)
        try:
            policy.abilities = find_capabilities(self._link, settings, name, policy.training())
            if settings.method == "sdpo" and not policy.abilities.support:
                raise ConfigError(
                    f"--method sdpo compares whole distributions, and the Tinker server at {self._link.address} tells only "
                    "single tokens: use --method combine or opd, or a server with topk_prompt_logprobs and soft targets"
                )
            super().__init__(settings, StepPlan.of(settings), policy, MOST)
        except BaseException:
            self._link.drop()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        abilities = self._policy.abilities
        found = [
            f"the directive term is on the teacher's {self._plan.objective.top_k} likeliest tokens"
            if abilities.support
            else "the directive term is on the sampled tokens only: the Tinker server does not tell the likeliest ones"
        ]
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

    def attempt(self, job: VersionJob) -> Outcome:
        """See `BaseVersionTrainer.attempt`; whatever goes wrong, the next attempt begins with a client of its own."""
        try:
            turns, odd = self._at_temperature_one(job.turns)
            served = [_at_one(turn) for turn in job.served]
            outcome = super().attempt(replace(job, turns=turns, served=served))
        except BaseException:
            self._policy.give_up()
            raise
        return replace(outcome, refused={**outcome.refused, **odd})

    def _train(self, samples: Sequence[Sample], number: int, plan: StepPlan) -> dict[str, float]:
        self._policy.begin(adapter_name(self.name, number))
        return train(self._policy, samples, plan, seed=self._settings.seed, carrier=self._settings.loss_fn)

    def _backend_metrics(self) -> Json:
        """Where the new version is on the server, and how it was made."""
        return {"tinker": {**asdict(self._policy.saved), "support": self._policy.abilities.support}}

    def _model_key(self) -> str:
        """Models may share the tokenizer that is all there is of them here."""
        return f"{super()._model_key()} {self._policy.base_model}"

    def _at_temperature_one(
        self, turns: Sequence[ScoredTurn]
    ) -> tuple[list[ScoredTurn], Mapping[str, TurnRefusal]]:
        """The turns with log-probabilities at temperature 1, the only one at which a prompt is scored.

        What was reported of a rated reply at another temperature is computed again by the version that sampled it.
        """
        ready: dict[str, ScoredTurn] = {}
        refused: dict[str, TurnRefusal] = {}
        asked: dict[int, list[ScoredTurn]] = {}
        for turn in turns:
            is_known = (
                not self._plan.reads_verdict_of(turn)
                or turn.logprob_mode is LogprobMode.RAW
                or turn.temperature == 1.0
                or turn.temperature < GREEDY_BELOW
            )
            if is_known or not (turn.prompt_token_ids and turn.completion.token_ids):
                ready[turn.turn_id] = _at_one(turn)
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
                completion = replace(turn.completion, sampling_logprobs=own)
                ready[turn.turn_id] = replace(_at_one(turn), completion=completion)
        return [ready[turn.turn_id] for turn in turns if turn.turn_id in ready], refused

    def _sampler_path(self, version: int) -> str:
        if version == BASE_VERSION:
            return ""
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


def _at_one(turn: ScoredTurn) -> ScoredTurn:
    """The turn, to be read at temperature 1."""
    return replace(turn, temperature=1.0, logprob_mode=LogprobMode.RAW)


def _check(settings: Settings) -> None:
    """Refuse what a Tinker server cannot do. Raises: ConfigError."""
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
