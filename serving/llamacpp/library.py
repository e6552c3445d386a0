"""The C interface of llama.cpp. The only module that calls libllama.

The declarations are those of llama-cpp-python's ctypes module, which is built together with its library (`scripts/install_llamacpp.py`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import numpy.typing

from serving.llamacpp.installation import INSTALL, PACKAGE
from store.errors import AdapterError, ConfigError

log = logging.getLogger("patina.llamacpp")

Logits = numpy.typing.NDArray[numpy.float32]

#: `llama_ftype` of files without quantised weights: float32, float16, bfloat16.
_ALL_FLOAT32, _FLOAT_TYPES = 0, (0, 1, 32)
_ERROR_LEVEL = 4
_MAX_REASON = 300


class NoRoom(Exception):
    """The tokens of a batch do not fit into the cache; nothing was changed."""


class _Library:
    """The loaded bindings, and the last errors that the library logged."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None:
            raise ConfigError(f"the bindings of llama.cpp are not installed: {INSTALL}")
        # The package's own start imports a second engine and its cache; the declarations alone are used here.
        sys.modules.setdefault(PACKAGE, importlib.util.module_from_spec(spec))
        try:
            self.api: Any = importlib.import_module(f"{PACKAGE}.llama_cpp")
        except (ImportError, OSError, RuntimeError) as error:
            raise ConfigError(f"the bindings of llama.cpp cannot be loaded ({error}): {INSTALL}") from error
        self._errors = threading.local()
        self._callback = self.api.llama_log_callback(
            self._log
        )  # referenced: the library keeps only its address
        self.api.llama_log_set(self._callback, None)
        self.api.llama_backend_init()

    def _log(self, level: int, text: bytes, _: object) -> None:
        line = text.decode("utf-8", errors="replace").strip()
        if level == _ERROR_LEVEL:
            self._errors.lines = [*getattr(self._errors, "lines", [])[-3:], line]
        log.debug("%s", line)

    def forget_errors(self) -> None:
        self._errors.lines = []

    def reason(self) -> str:
        """Return what the library logged as errors in this thread since `forget_errors`."""
        lines = [line.partition(": ")[2] or line for line in getattr(self._errors, "lines", [])]
        return "; ".join(lines)[:_MAX_REASON] or "no reason given"


_library: _Library | None = None


def load_library() -> _Library:
    """Return the loaded library. Raises: ConfigError, one sentence."""
    global _library
    if _library is None:
        _library = _Library()
    return _library


def write_float16(source: Path, target: Path, threads: int) -> None:
    """Write a GGUF file's model with its matrices in float16. Raises: ConfigError."""
    library = load_library()
    params = library.api.llama_model_quantize_default_params()
    params.ftype = library.api.LLAMA_FTYPE_MOSTLY_F16
    params.allow_requantize = True
    params.nthread = threads
    library.forget_errors()
    if library.api.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise ConfigError(f"{source} cannot be written in float16: {library.reason()}")


class LlamaModel:
    """The weights of one GGUF file; any number of contexts and adapters use them.

    Args:
        is_mapped: the file is mapped into memory. The library keeps weights for the processor's matrix instructions in a copy of its own; what it
            copied of a mapped file stays in memory as well.

    Raises: ConfigError if the file cannot be loaded.
    """

    def __init__(self, path: Path, *, gpu_layers: int | None = None, is_mapped: bool = True) -> None:
        self._library = load_library()
        api = self.api = self._library.api
        params = api.llama_model_default_params()
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        if not is_mapped:
            params.load_mode = api.LLAMA_LOAD_MODE_NONE
        self._library.forget_errors()
        self.pointer = api.llama_model_load_from_file(str(path).encode(), params)
        if not self.pointer:
            raise ConfigError(f"llama.cpp cannot load {path}: {self._library.reason()}")
        self._vocabulary = api.llama_model_get_vocab(self.pointer)
        self._adapter_lock = threading.Lock()
        self.size: int = api.llama_vocab_n_tokens(self._vocabulary)
        self.trained_context: int = api.llama_model_n_ctx_train(self.pointer)
        self.parameters: int = api.llama_model_n_params(self.pointer)
        self.layers: int = api.llama_model_n_layer(self.pointer)
        self.heads: int = api.llama_model_n_head(self.pointer)
        self.kv_heads: int = api.llama_model_n_head_kv(self.pointer)
        self.is_float32 = api.llama_model_ftype(self.pointer) == _ALL_FLOAT32
        self.is_quantized = api.llama_model_ftype(self.pointer) not in _FLOAT_TYPES
        # A recurrent state holds all tokens before it: no part of it can be removed.
        self.can_rewind = not (
            api.llama_model_is_recurrent(self.pointer) or api.llama_model_is_hybrid(self.pointer)
        )

    def metadata(self, key: str) -> str:
        """Return an entry of the file's header; "" if it has none of this name."""
        buffer = ctypes.create_string_buffer(256)
        found = self.api.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", errors="replace") if found >= 0 else ""

    @property
    def architecture(self) -> str:
        return self.metadata("general.architecture")

    @property
    def weight_type(self) -> str:
        """Return the type of the weights, e.g. ``Q4_1``, as the library describes it after the architecture and a size."""
        buffer = ctypes.create_string_buffer(128)
        self.api.llama_model_desc(self.pointer, buffer, len(buffer))
        return buffer.value.decode("utf-8", errors="replace").split(" ", 2)[-1]

    def piece(self, token_id: int) -> str:
        """Return one entry of the file's vocabulary."""
        text: bytes = self.api.llama_vocab_get_text(self._vocabulary, token_id) or b""
        return text.decode("utf-8", errors="replace")

    def close(self) -> None:
        """Free the weights, and the adapters that were loaded for them."""
        self.api.llama_model_free(self.pointer)

    def load_adapter(self, path: Path) -> Any:
        """Load a GGUF adapter, whose file is not needed afterwards. Callable from any thread. Raises: AdapterError."""
        with self._adapter_lock:
            self._library.forget_errors()
            pointer = self.api.llama_adapter_lora_init(self.pointer, str(path).encode())
        if not pointer:
            raise AdapterError(f"llama.cpp cannot load the adapter: {self._library.reason()}")
        return pointer

    def free_adapter(self, pointer: Any) -> None:
        """Free an adapter that no context uses."""
        with self._adapter_lock:
            self.api.llama_adapter_lora_free(pointer)

    def kv_bytes_per_token(self) -> int:
        """Return the bytes of keys and values that one token takes, over all layers."""
        prefix = self.architecture
        width = self.api.llama_model_n_embd(self.pointer) // max(1, self.heads)
        key = int(self.metadata(f"{prefix}.attention.key_length") or width)
        value = int(self.metadata(f"{prefix}.attention.value_length") or width)
        return self.layers * self.kv_heads * (key + value) * (4 if self.is_float32 else 2)


class LlamaContext:
    """A cache of `cells` tokens, shared by sequences that are numbered from 0. One thread only.

    Args:
        batch: most tokens of one `decode`.
        outputs: most positions of one `decode` whose logits are wanted.
    """

    def __init__(
        self, model: LlamaModel, *, cells: int, sequences: int, batch: int, outputs: int, threads: int
    ) -> None:
        self.model = model
        api = self._api = model.api
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = cells, batch, min(batch, params.n_ubatch)
        params.n_seq_max = sequences
        params.n_outputs_max = min(batch, outputs)
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True  # so that sequences share the cells of a common prefix
        params.swa_full = True  # so that the cache of a layer with a window can be cut back too
        params.no_perf = True
        if model.is_float32:
            params.type_k = params.type_v = api.GGML_TYPE_F32
            params.flash_attn_type = 0  # its kernel multiplies in half precision
        self.pointer = api.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise ConfigError(f"llama.cpp cannot make a context of {cells} tokens: {load_library().reason()}")
        self._memory = api.llama_get_memory(self.pointer)
        self._adapter: Any = None
        self.capacity = batch
        self._tokens = numpy.zeros(batch, numpy.int32)
        self._positions = numpy.zeros(batch, numpy.int32)
        self._counts = numpy.ones(batch, numpy.int32)
        self._sequences = numpy.zeros(batch, numpy.int32)
        self._wanted = numpy.zeros(batch, numpy.int8)
        pointer = ctypes.POINTER(ctypes.c_int32)
        start = self._sequences.ctypes.data
        self._rows = (pointer * batch)(*(ctypes.cast(start + 4 * row, pointer) for row in range(batch)))
        self._batch = api.llama_batch(
            token=self._tokens.ctypes.data_as(pointer),
            pos=self._positions.ctypes.data_as(pointer),
            n_seq_id=self._counts.ctypes.data_as(pointer),
            seq_id=self._rows,
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def use_adapter(self, pointer: Any) -> None:
        """Apply an adapter, or none, to the next `decode`; what is cached keeps the adapter that it was computed with."""
        if pointer == self._adapter:
            return
        if pointer is None:
            self._api.llama_set_adapters_lora(self.pointer, None, 0, None)
        else:
            kind = self._api.llama_adapter_lora_p_ctypes
            self._api.llama_set_adapters_lora(self.pointer, (kind * 1)(pointer), 1, (ctypes.c_float * 1)(1.0))
        self._adapter = pointer

    def decode(self, parts: Sequence[tuple[int, int, Sequence[int], bool]]) -> Logits:
        """Append tokens to sequences and return logits [K, V], in the order of the parts.

        Args:
            parts: (sequence, position of the first token, tokens, whether logits of all its tokens are wanted; else of the last).

        Raises:
            NoRoom: the cache is full.
            RuntimeError: the library failed.
        """
        size = 0
        wanted: list[int] = []
        for sequence, start, tokens, wants_all in parts:
            end = size + len(tokens)
            self._tokens[size:end] = tokens
            self._positions[size:end] = numpy.arange(start, start + len(tokens))
            self._sequences[size:end] = sequence
            self._wanted[size:end] = wants_all
            self._wanted[end - 1] = True
            wanted += range(size, end) if wants_all else [end - 1]
            size = end
        self._batch.n_tokens = size
        load_library().forget_errors()
        result = self._api.llama_decode(self.pointer, self._batch)
        if result == 1:
            raise NoRoom
        if result:
            raise RuntimeError(f"llama.cpp failed with {result}: {load_library().reason()}")
        logits = numpy.empty((len(wanted), self.model.size), numpy.float32)
        for row, place in enumerate(wanted):
            found = self._api.llama_get_logits_ith(self.pointer, place)
            logits[row] = numpy.ctypeslib.as_array(found, (self.model.size,))
        return logits

    def copy(self, source: int, target: int, length: int) -> None:
        """Let a sequence begin with the first `length` tokens of another; they share the cells."""
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def cut(self, sequence: int, length: int) -> None:
        """Remove a sequence's tokens after the first `length`."""
        self._api.llama_memory_seq_rm(self._memory, sequence, length, -1)

    def clear(self) -> None:
        """Remove all sequences."""
        self._api.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Free the context."""
        self._api.llama_free(self.pointer)
