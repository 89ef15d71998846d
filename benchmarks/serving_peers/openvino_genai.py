"""OpenVINO GenAI: LLMPipeline for one prompt, ContinuousBatchingPipeline for many.

kind is the weight format, int8 or int4: everything as it comes. With "-tuned" behind it, what OpenVINO's documentation
offers beyond that and was found to pay here: activations quantised in groups of 128 (it comes with 32; 64, 256, 1,024
and whole rows were slower), and for many prompts a bfloat16 cache and steps of up to 2,048 tokens.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from serving_peers.contender import NUM_THREADS, Request, Timeline
from serving_peers.openvino_kinds import directory_of, is_tuned

_CACHE_GB = 1


def prepare(work: Path, kind: str) -> None:
    """Nothing: openvino_export has done it."""


def start(work: Path, kind: str) -> "OpenVino":
    return OpenVino(directory_of(work, kind), tuned=is_tuned(kind))


class OpenVino:
    """The pipeline for many is made when first used."""

    def __init__(self, directory: Path, *, tuned: bool) -> None:
        self._directory = directory
        self._properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": NUM_THREADS}
        self._batching: dict[str, Any] = {}
        self._batch_properties: dict[str, Any] = {}
        if tuned:
            self._properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "128"
            self._batch_properties["KV_CACHE_PRECISION"] = "bf16"
            self._batching["max_num_batched_tokens"] = 2048
        self._alone = openvino_genai.LLMPipeline(str(directory), "CPU", **self._properties)
        self._together: Any = None
        self.settings: dict[str, Any] = {
            "version": f"openvino-genai {openvino_genai.__version__}",
            **self._properties,
            "for many": self._batch_properties | self._batching,
        }

    def generate(self, request: Request) -> Timeline:
        config, prompt, clock = _config(request.num_tokens), _tensor(request), _Clock()
        result = self._alone.generate(prompt, config, clock)
        return Timeline(list(result.tokens[0]), clock.times_s)

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        if self._together is None:
            self._together = self._batched()
        configs = [_config(r.num_tokens) for r in requests]
        results = self._together.generate([_tensor(r) for r in requests], configs)
        return [list(result.m_generation_ids[0]) for result in results]

    def _batched(self) -> Any:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        for name, value in self._batching.items():
            setattr(scheduler, name, value)
        properties = self._properties | self._batch_properties
        return openvino_genai.ContinuousBatchingPipeline(str(self._directory), scheduler, "CPU", properties)


class _Clock(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Notes when each token came, without turning it into text."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []
        self._start_s = time.perf_counter()

    def write(self, token: int | Sequence[int]) -> Any:
        count = 1 if isinstance(token, int) else len(token)
        self.times_s += [time.perf_counter() - self._start_s] * count
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def _tensor(request: Request) -> Any:
    return openvino.Tensor(np.asarray([request.prompt], dtype=np.int64))


def _config(num_tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config
