"""OpenVINO GenAI: LLMPipeline for one prompt, ContinuousBatchingPipeline for many.

kind is the weight format, int8 or int4: everything as it comes. With "-tuned" behind it, what OpenVINO's documentation
offers beyond that and was found to pay here: activations quantised in groups of 128 (it comes with 32; 64, 256, 1,024
and whole rows were slower), and for many prompts a bfloat16 cache and steps of up to 2,048 tokens.

`prepare` converts with optimum-intel's command line, which may lie in another environment than the one that runs.
"""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving_peers.contender import MODEL, NUM_THREADS, Request, Timeline

_CACHE_GB = 1
_TUNED = "-tuned"


def prepare(work: Path, kind: str) -> None:
    """`optimum-cli export openvino --weight-format int8|int4`, with its defaults."""
    directory = _directory(work, kind)
    if (directory / "openvino_model.xml").exists():
        return
    command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino"]
    command += ["--model", str(work / MODEL), "--task", "text-generation-with-past"]
    command += ["--weight-format", kind.removesuffix(_TUNED), str(directory)]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})


def start(work: Path, kind: str) -> "OpenVino":
    return OpenVino(_directory(work, kind), tuned=kind.endswith(_TUNED))


def _directory(work: Path, kind: str) -> Path:
    return work / f"openvino-{kind.removesuffix(_TUNED)}"


class OpenVino:
    """Each pipeline is made when first used."""

    def __init__(self, directory: Path, *, tuned: bool) -> None:
        # The environment that only converts has none of these.
        self._genai, self._np, self._openvino = map(importlib.import_module, ("openvino_genai", "numpy", "openvino"))
        self._directory = directory
        self._properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": NUM_THREADS}
        self._batching: dict[str, Any] = {}
        self._batch_properties: dict[str, Any] = {}
        if tuned:
            self._properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "128"
            self._batch_properties["KV_CACHE_PRECISION"] = "bf16"
            self._batching["max_num_batched_tokens"] = 2048
        self._alone = self._genai.LLMPipeline(str(directory), "CPU", **self._properties)
        self._together: Any = None
        self.settings: dict[str, Any] = {
            "version": f"openvino-genai {self._genai.__version__}",
            **self._properties,
            "for many": self._batch_properties | self._batching,
        }

    def generate(self, request: Request) -> Timeline:
        times_s: list[float] = []

        def note(_: Any) -> Any:
            times_s.append(time.perf_counter() - start)
            return self._genai.StreamingStatus.RUNNING

        config = self._config(request.num_tokens)
        start = time.perf_counter()
        result = self._alone.generate(self._tensor(request), config, note)
        return Timeline(list(result.tokens[0]), times_s)

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        if self._together is None:
            self._together = self._batched()
        configs = [self._config(r.num_tokens) for r in requests]
        results = self._together.generate([self._tensor(r) for r in requests], configs)
        return [list(result.m_generation_ids[0]) for result in results]

    def _batched(self) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        for name, value in self._batching.items():
            setattr(scheduler, name, value)
        properties = self._properties | self._batch_properties
        return self._genai.ContinuousBatchingPipeline(str(self._directory), scheduler, "CPU", properties)

    def _tensor(self, request: Request) -> Any:
        return self._openvino.Tensor(self._np.asarray([request.prompt], dtype=self._np.int64))

    def _config(self, num_tokens: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        return config
