"""whet's own engine, through its public interface; kind is how the weights are held: as-is (bfloat16), int8 or int4."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import whet
from serving_peers.contender import MODEL, NUM_THREADS, Request, Timeline


def prepare(work: Path, kind: str) -> None:
    """Nothing: it quantises the Hugging Face directory as it loads."""


def start(work: Path, kind: str) -> "Whet":
    return Whet(work / MODEL, kind)


class Whet:
    """One engine for both, as it comes but for drafts: such a model repeats itself, and drafts would be right."""

    def __init__(self, directory: Path, weights: str) -> None:
        torch.set_num_threads(NUM_THREADS)
        options: dict[str, Any] = {"weights": weights, "speculation": "off"}
        self._engine = whet.Engine(directory, whet.EngineOptions(**options))
        self.settings: dict[str, Any] = {
            "version": f"whet {whet.__version__}",
            "threads": torch.get_num_threads(),
            "model": type(self._engine.model).__name__,
            **options,
        }

    def generate(self, request: Request) -> Timeline:
        tokens: list[int] = []
        times_s: list[float] = []
        start = time.perf_counter()
        for delta in self._engine.stream(request.prompt, _params(request)):
            times_s += [time.perf_counter() - start] * len(delta.token_ids)
            tokens += delta.token_ids
        return Timeline(tokens, times_s)

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        completions = self._engine.generate([r.prompt for r in requests], [_params(r) for r in requests])
        return [list(completion.token_ids) for completion in completions]


def _params(request: Request) -> Any:
    return whet.SamplingParams(temperature=0.0, max_tokens=request.num_tokens, ignore_eos=True)
