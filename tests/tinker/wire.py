"""The protobuf half of Tinker's wire, by the SDK's own message definitions; what is JSON is read where it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from tinker.proto import tinker_public_pb2 as pb
from torch import Tensor

PROTOBUF = "application/x-protobuf"
_NUMPY = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_INT32: np.int32}

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One sequence [T] and what its loss takes."""

    tokens: list[int]
    inputs: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward:
    """A forward or forward-backward request."""

    model_id: str
    seq_id: int
    data: list[Datum]
    loss: str
    config: Mapping[str, float]
    forward_only: bool


@dataclass(slots=True, kw_only=True)
class Sampled:
    """What came of one sample; `top` has a row of (id, logprob) for each token where that was asked for."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    is_stopped: bool = False


def read_forward_backward(body: bytes) -> ForwardBackward:
    """Raises: ValueError for what is not understood here."""
    message = pb.ForwardBackwardRequest.FromString(body)
    data = []
    for one in message.data:
        if any(chunk.WhichOneof("chunk") != "encoded_text" for chunk in one.model_input):
            raise ValueError("only text is understood here")
        parts = [np.frombuffer(chunk.encoded_text.tokens, np.int32) for chunk in one.model_input]
        tokens = np.concatenate(parts).tolist() if parts else []
        inputs = {}
        for name, tensor in one.loss_fn_inputs.items():
            if tensor.HasField("sparse_csr"):
                raise ValueError(f"{name} is sparse, which is not understood here")
            values = np.frombuffer(tensor.dense, _NUMPY[tensor.dtype]).copy()
            inputs[name] = torch.from_numpy(values).view(*(tensor.shape or [-1]))
        data.append(Datum(tokens=tokens, inputs=inputs))
    return ForwardBackward(
        model_id=message.model_id,
        seq_id=message.seq_id,
        data=data,
        loss=message.loss_fn,
        config=dict(message.loss_fn_config),
        forward_only=message.forward_only,
    )


def build_forward_backward(total: float, logprobs: Sequence[Floats]) -> bytes:
    output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    output.metrics["loss:sum"] = total
    record = output.loss_fn_outputs.add()
    record.num_datums = len(logprobs)
    tensor = record.fields["logprobs"]
    tensor.dtype = pb.DTYPE_FLOAT32
    tensor.trailing_shape.extend(logprobs[0].shape[1:] if logprobs else [])
    tensor.data = b"".join(each.tobytes() for each in logprobs)
    tensor.offsets = np.cumsum([0, *(each.nbytes for each in logprobs)]).astype(np.int64).tobytes()
    return bytes(output.SerializeToString())


@dataclass(slots=True, kw_only=True)
class PromptScores:
    """What was asked for about the prompt: `logprobs` [P], the first NaN; `top` [P] rows, the first empty."""

    logprobs: Floats | None = None
    top: Sequence[Sequence[tuple[int, float]]] | None = None


def build_sample(sequences: Sequence[Sampled], scores: PromptScores) -> bytes:
    response = pb.SampleResponse()
    for one in sequences:
        sequence = response.sequences.add()
        sequence.stop_reason = pb.STOP_REASON_STOP if one.is_stopped else pb.STOP_REASON_LENGTH
        sequence.tokens = np.asarray(one.tokens, np.int32).tobytes()
        sequence.logprobs = np.asarray(one.logprobs, np.float32).tobytes()
        if one.top:
            _fill(sequence.topk_sampled_logprobs, one.top)
    if scores.logprobs is not None:
        response.prompt_logprobs = scores.logprobs.tobytes()
    if scores.top is not None:
        _fill(response.topk_prompt_logprobs, scores.top)
    return bytes(response.SerializeToString())


def _fill(message: pb.TopkLogprobs, rows: Sequence[Sequence[tuple[int, float]]]) -> None:
    width = max(len(row) for row in rows)
    padded = [[*row, *[(0, -99999.0)] * (width - len(row))] for row in rows]
    message.length, message.k = len(rows), width
    message.token_ids = np.asarray([[token for token, _ in row] for row in padded], np.int32).tobytes()
    message.logprobs = np.asarray([[value for _, value in row] for row in padded], np.float32).tobytes()
