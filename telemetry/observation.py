"""What is measured of one recorded exchange."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeObservation:
    """One exchange, as the recorder wrote it. All times are Unix times in seconds.

    Attributes:
        kind: "main" or "side".
        client: name of the client's program.
        sent_at: when the request went to the backend; None: it did not, or an earlier version wrote the entry.
        first_chunk_at: when the first bytes of the reply's body came.
        backend_ended_at: when its last bytes came.
        conversation: the session.
        traceparent: of the request (W3C Trace Context), or "".
        error: code of what is wrong with the exchange, or "".
        input_messages, output_text: only where the content may be exported, else "".
    """

    turn_id: str
    response_id: str
    conversation: str
    kind: str
    client: str
    operation: str
    policy: str
    served_model: str
    status_code: int
    is_streamed: bool
    created_at: float
    finished_at: float
    sent_at: float | None
    first_chunk_at: float | None
    backend_ended_at: float | None
    input_tokens: int
    output_tokens: int
    finish_reasons: tuple[str, ...]
    temperature: float
    max_tokens: int | None
    traceparent: str
    error: str
    input_messages: str = ""
    output_text: str = ""

    @property
    def overhead_s(self) -> float | None:
        """Return the seconds that Patina added: before the request went out and after the reply's last byte came in."""
        if self.sent_at is None or self.backend_ended_at is None:
            return None
        return max(0.0, self.sent_at - self.created_at) + max(0.0, self.finished_at - self.backend_ended_at)

    @property
    def output_token_s(self) -> float | None:
        """Return the mean seconds of a token after the first of a streamed reply; None where there is no second one."""
        if not self.is_streamed or self.first_chunk_at is None or self.output_tokens < 2:
            return None
        return max(0.0, self.finished_at - self.first_chunk_at) / (self.output_tokens - 1)
