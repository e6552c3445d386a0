"""The trainer's line to a Tinker server: clients made when they are needed, futures waited for with an eye on the server, foreign errors
mapped once.

The SDK waits minutes for a server that is down and for ever for one that answers 5xx. So a wait here looks at the server's health now
and then and gives up when the server does not answer. After such a failure everything is dropped and created again at the next use: sessions and models do
not outlive the server, checkpoints do.

Sampling has one session, each training client has its own. Ending that session is how a server learns that the weights are done with.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import httpx
import tinker

from serving.tinker.service import address, api_key, base_url, connect, made, probe
from store.errors import PatinaError, TheirError, UpstreamError, UpstreamUnreachable, first_line
from store.settings import Settings

#: How often a wait looks at the server's health, and how many bad looks in a row end it.
_LOOK_S, _BAD_LOOKS = 5.0, 3
#: Longest wait for the end of a session.
_CLOSE_S = 2.0
#: Longest wait for one answer. Hosted servers queue: minutes are usual when they are busy.
_LONGEST_S = 1_800.0
#: Sampling clients kept, besides the base models'.
_KEPT_CLIENTS = 4
#: What the SDK and its transport raise. It also has plain ValueError and RuntimeError for requests that are lost.
_FOREIGN = (tinker.TinkerError, httpx.HTTPError, ValueError, RuntimeError, OSError)


class TinkerConnection:
    """One trainer's line. One thread only."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sampling: tinker.ServiceClient | None = None
        self._clients: OrderedDict[tuple[str, str], tinker.SamplingClient] = OrderedDict()
        self._trainings: list[tinker.ServiceClient] = []

    @property
    def address(self) -> str:
        return address(self._settings)

    def check(self) -> None:
        """Raises: UpstreamError when the server does not answer; ConfigError when our key is refused."""
        probe(self._settings)

    def base_client(self, model: str) -> tinker.SamplingClient:
        """The client of a base model. Raises: UpstreamError."""
        return self._client("base", model)

    def client_of(self, path: str) -> tinker.SamplingClient:
        """The client of a checkpoint for sampling. Raises: UpstreamError, TheirError when there is no such checkpoint."""
        return self._client("path", path)

    def _client(self, kind: str, name: str) -> tinker.SamplingClient:
        key = (kind, name)
        if key in self._clients:
            self._clients.move_to_end(key)
            return self._clients[key]
        if self._sampling is None:
            self._sampling = connect(self._settings)
        with _mapped(self):
            wanted: dict[str, Any] = {"base_model": name} if kind == "base" else {"model_path": name}
            client = self.wait([self._sampling.create_sampling_client(**wanted)])[0]
        self._clients[key] = client
        paths = [other for other in self._clients if other[0] == "path"]
        for old in paths[: max(0, len(paths) - _KEPT_CLIENTS)]:
            del self._clients[old]
        return client

    def train_anew(self, model: str, *, rank: int, seed: int) -> tinker.TrainingClient:
        """A fresh adapter on every linear layer but the output layer, as the local trainer has it. Raises: UpstreamError."""
        service = self._training_service()
        with _mapped(self):
            return self.wait(
                [
                    service.create_lora_training_client(
                        base_model=model, rank=rank, seed=seed, train_unembed=False
                    )
                ]
            )[0]

    def train_from(self, path: str) -> tinker.TrainingClient:
        """An adapter and its optimizer as they were saved. Raises: UpstreamError, TheirError when there is no such checkpoint."""
        service = self._training_service()
        with _mapped(self):
            return self.wait([service.create_training_client_from_state_with_optimizer(path)])[0]

    def _training_service(self) -> tinker.ServiceClient:
        self.end_training()
        service = connect(self._settings)
        self._trainings.append(service)
        return service

    def end_training(self) -> None:
        """Let go of the training client there is; the server forgets its weights."""
        for service in self._trainings:
            _close(service)
        self._trainings.clear()

    def wait(self, futures: Sequence[Any]) -> list[Any]:
        """The results of all, in their order; a client that was made at once counts as its own result.

        Raises:
            UpstreamUnreachable: the server went away, or does not come to an end.
            UpstreamError: it lost what it was asked to do, as after a restart.
            TheirError: it refuses or fails to do it.
        """
        end = time.monotonic() + _LONGEST_S
        with _mapped(self):
            return [self._result(future, end) for future in futures]

    def _result(self, future: Any, end: float) -> Any:
        bad = 0
        if not hasattr(future, "result"):
            return made(future)
        while True:
            try:
                return future.result(timeout=_LOOK_S)
            except TimeoutError:
                try:
                    probe(self._settings)
                    bad = 0
                except UpstreamError:
                    bad += 1
                    if bad >= _BAD_LOOKS:
                        raise
                if time.monotonic() > end:
                    raise UpstreamUnreachable(
                        f"the Tinker server at {self.address} gave no answer in {_LONGEST_S:.0f} s"
                    ) from None

    def delete(self, paths: Sequence[str]) -> list[str]:
        """Delete checkpoints on the server; returns a sentence for each that it would not delete. Never raises for the server's sake."""
        refused = []
        client: tinker.RestClient | None = None
        for path in paths:
            try:
                probe(self._settings)
                if client is None:
                    client = tinker.RestClient(
                        base_url=base_url(self._settings), api_key=api_key(self._settings)
                    )
                client.delete_checkpoint_from_tinker_path(path).result(timeout=60.0)
            except tinker.NotFoundError as exc:
                # Either it is gone already or the server has no deletion; both leave nothing to do.
                refused.append(f"{path} was not deleted on the server: {first_line(exc)}")
            except (*_FOREIGN, PatinaError) as exc:
                refused.append(f"{path} stays on the server: {first_line(exc)}")
        return refused

    def drop(self) -> None:
        """Forget every client and session: they are created again at the next use."""
        self.end_training()
        self._clients.clear()
        if self._sampling is not None:
            _close(self._sampling)
            self._sampling = None


class _mapped:  # a context manager, read as a verb
    """Errors of the SDK inside become ours. Where the line itself failed it is dropped, since its state is unknown."""

    def __init__(self, link: TinkerConnection) -> None:
        self._link = link

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        if isinstance(error, UpstreamError):
            self._link.drop()
            return
        if isinstance(error, PatinaError) or not isinstance(error, _FOREIGN):
            return
        where = f"the Tinker server at {self._link.address}"
        text = first_line(error)[:300]
        # an answer that is none (a gradient's norm that is no number) is not a line that broke
        if isinstance(error, tinker.RequestFailedError) or "validation error" in text:
            raise TheirError(f"{where} failed at it: {text}") from error
        if isinstance(
            error, tinker.BadRequestError | tinker.UnprocessableEntityError | tinker.PermissionDeniedError
        ):
            raise TheirError(f"{where} refuses: {text}") from error
        self._link.drop()
        if isinstance(error, tinker.NotFoundError):
            raise UpstreamError(f"{where} does not know (any more) what it was asked for: {text}") from error
        raise UpstreamError(f"{where} was lost: {text}") from error


def _close(service: tinker.ServiceClient) -> None:
    """End a session. A server that is away has ended it in its own way; cancelled, the SDK stops its heartbeats all the same."""
    closing = service.close("success")
    try:
        closing.result(timeout=_CLOSE_S)
    except TimeoutError:
        closing.future().cancel()
    except _FOREIGN as exc:
        print(f"patina: a session on the Tinker server was not closed: {first_line(exc)}", file=sys.stderr)
