"""llama.cpp, through the low-level functions of llama-cpp-python: kind is the name of a quantisation, such as Q8_0."""

import ctypes
import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from serving_peers.contender import MODEL, NUM_THREADS, Request, Timeline

_N_BATCH = 2048  # llama.cpp's own defaults
_N_UBATCH = 512
_SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)


def prepare(work: Path, kind: str) -> None:
    """Write the model as GGUF, then quantise it as llama-quantize does by default."""
    whole, quantized = work / "model-f32.gguf", _path(work, kind)
    if quantized.exists():
        return
    if not whole.exists():
        # It needs torch, whose memory would count as llama.cpp's where this was imported above.
        importlib.import_module("serving_peers.gguf_file").write_gguf(work / MODEL, whole)
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    parameters.nthread = NUM_THREADS
    partial = quantized.with_suffix(".partial")
    if llama_cpp.llama_model_quantize(str(whole).encode(), str(partial).encode(), ctypes.byref(parameters)):
        raise RuntimeError(f"llama.cpp could not quantise {whole} to {kind}")
    partial.replace(quantized)


def start(work: Path, kind: str) -> "LlamaCpp":
    return LlamaCpp(_path(work, kind))


def _path(work: Path, kind: str) -> Path:
    return work / f"model-{kind}.gguf"


class LlamaCpp:
    """One sequence, or many in one batch; two contexts over the same weights."""

    def __init__(self, path: Path, *, flash_attention: int = 1, unified: bool = True) -> None:
        llama_cpp.llama_log_set(_SILENT, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp could not load {path}")
        self._flash_attention, self._unified = flash_attention, unified
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._alone = self._context(num_sequences=1, num_tokens=4096 + 64)
        self._together: Any = None
        self._batch = llama_cpp.llama_batch_init(_N_BATCH, 0, 1)
        self.settings: dict[str, Any] = {
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "system": llama_cpp.llama_print_system_info().decode(),
            "threads": NUM_THREADS,
            "n_batch": _N_BATCH,
            "n_ubatch": _N_UBATCH,
            "flash_attention": flash_attention,
            "unified cache": unified,
        }

    def generate(self, request: Request) -> Timeline:
        tokens: list[int] = []
        times_s: list[float] = []
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._alone), True)
        start = time.perf_counter()
        pending = request.prompt
        while len(tokens) < request.num_tokens:
            for begin in range(0, len(pending), _N_BATCH):
                part = pending[begin : begin + _N_BATCH]
                array = (llama_cpp.llama_token * len(part))(*part)  # the batch only points to it
                self._decode(self._alone, llama_cpp.llama_batch_get_one(array, len(part)))
            tokens.append(self._best(self._alone, -1))
            times_s.append(time.perf_counter() - start)
            pending = [tokens[-1]]
        return Timeline(tokens, times_s)

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """Each batch: a token of every sequence that has its prompt behind it, then as much of prompts as fits."""
        if self._together is None:
            total = sum(len(r.prompt) + r.num_tokens for r in requests)
            self._together = self._context(num_sequences=len(requests), num_tokens=total)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._together), True)
        outputs: list[list[int]] = [[] for _ in requests]
        pending = [list(r.prompt) for r in requests]
        done = [0 for _ in requests]
        while any(pending):
            rows = self._fill(pending, done)
            self._decode(self._together, self._batch)
            for row, sequence in rows:
                outputs[sequence].append(self._best(self._together, row))
                if len(outputs[sequence]) < requests[sequence].num_tokens:
                    pending[sequence] = [outputs[sequence][-1]]
        return outputs

    def _fill(self, pending: list[list[int]], done: list[int]) -> list[tuple[int, int]]:
        """Put what is pending into the batch, up to its size; returns (row, sequence) where logits will be."""
        batch, rows, size = self._batch, [], 0
        for sequence in sorted(range(len(pending)), key=lambda s: len(pending[s])):
            part = pending[sequence][: _N_BATCH - size]
            for offset, token in enumerate(part):
                row = size + offset
                batch.token[row], batch.pos[row] = token, done[sequence] + offset
                batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, sequence, False
            size += len(part)
            done[sequence] += len(part)
            if part and len(part) == len(pending[sequence]):
                batch.logits[size - 1] = True
                rows.append((size - 1, sequence))
            pending[sequence] = pending[sequence][len(part) :]
        batch.n_tokens = size
        return rows

    def _context(self, num_sequences: int, num_tokens: int) -> Any:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = num_tokens
        parameters.n_seq_max = num_sequences
        parameters.n_batch, parameters.n_ubatch = _N_BATCH, _N_UBATCH
        parameters.n_threads = parameters.n_threads_batch = NUM_THREADS
        parameters.flash_attn_type = self._flash_attention
        parameters.kv_unified = self._unified
        context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not context:
            raise RuntimeError("llama.cpp could not make a context")
        return context

    @staticmethod
    def _decode(context: Any, batch: Any) -> None:
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")

    def _best(self, context: Any, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())
