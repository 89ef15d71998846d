"""transformers: `generate` for one prompt, its continuous batching for many; kind is the dtype, bfloat16 or float32."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.generation import BaseStreamer, ContinuousBatchingConfig, GenerationConfig

from serving_peers.contender import MODEL, NUM_THREADS, Request, Timeline

_NO_EOS = -1


def prepare(work: Path, kind: str) -> None:
    """Nothing: it reads the Hugging Face directory as it is."""


def start(work: Path, kind: str) -> "Transformers":
    return Transformers(work / MODEL, kind)


class Transformers:
    """The model in eager mode with the attention that transformers chooses: sdpa, PyTorch's own, where there is any."""

    def __init__(self, directory: Path, dtype: str) -> None:
        torch.set_num_threads(NUM_THREADS)
        self._model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(torch, dtype), local_files_only=True
        ).eval()
        self._manager: Any = None
        self.settings: dict[str, Any] = {
            "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "threads": torch.get_num_threads(),
            "dtype": dtype,
            "attention": self._model.config._attn_implementation,
        }

    def generate(self, request: Request) -> Timeline:
        clock = _Clock()
        prompt = torch.tensor([request.prompt])
        config = GenerationConfig(do_sample=False, max_new_tokens=request.num_tokens, eos_token_id=None, pad_token_id=0)
        clock.start()
        with torch.inference_mode():
            self._model.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=config, streamer=clock
            )
        return Timeline(clock.tokens, clock.times_s)

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """Through the manager that `generate_batch` itself uses: only there has a request a length of its own."""
        if self._manager is None:
            self._start_manager(requests)
        names = [
            self._manager.add_request(r.prompt, max_new_tokens=r.num_tokens, eos_token_id=_NO_EOS) for r in requests
        ]
        results: dict[str, list[int]] = {}
        while len(results) < len(requests):
            result = self._manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(result.error)
                results[result.request_id] = result.generated_tokens
            elif result is None and not self._manager.is_running():
                raise RuntimeError("continuous batching ended unexpectedly")
        return [results[name] for name in names]

    def _start_manager(self, requests: Sequence[Request]) -> None:
        """Room for all requests; how many tokens a batch has is left to transformers."""
        generation = GenerationConfig(do_sample=False, max_new_tokens=128, eos_token_id=_NO_EOS, pad_token_id=0)
        batching = ContinuousBatchingConfig(num_blocks=4 * len(requests), allow_block_sharing=False)
        self._manager = self._model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=batching
        )
        self._manager.start()


class _Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when each token came; the first thing that a streamer is given is the prompt."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.times_s: list[float] = []
        self._had_prompt = False
        self._start_s = 0.0

    def start(self) -> None:
        self._start_s = time.perf_counter()

    def put(self, value: Any) -> None:
        if self._had_prompt:
            self.times_s.append(time.perf_counter() - self._start_s)
            self.tokens += value.flatten().tolist()
        self._had_prompt = True

    def end(self) -> None:
        pass
