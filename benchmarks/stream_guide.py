"""Claims of a guide to real-time diffusion, measured again: in turns, in one process, on a processor or a GPU.

    python benchmarks/stream_guide.py DEVICE [small]

prints "answer" and one JSON object; `small` tries it with a tiny model. The guide claims a speedup of 1.96x by float16,
channels_last and PyTorch's attention (SDPA), 98.4 % less memory by the same, 3,891 frames/s, 2 to 5 ms less a frame by
CUDA graphs, and 1.5x to 3x by TensorRT. It names no model that runs, so a U-Net of Stable Diffusion's layers with a
fifth of its channels is taken, in float32 with attention as plain products for the naive one.
`stream_tables.judge_guide` compares what was measured with what was claimed.
"""

import copy
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch

from whet.measure.malloc import give_back
from whet.measure.memory import ResidentMemory, peak_rss_bytes, reset_peak_rss

FIFTH = (64, 128, 256, 256)
_TOKENS, _TOKEN_WIDTH = 77, 768
_ROUNDS, _CALLS, _BLANK = 8, 5, 3
_STEPS = 4

Call = Callable[[], Any]


def measure(device: str, widths: tuple[int, ...] = FIFTH, pixels: int = 256) -> dict[str, Any]:
    """Return what was measured: times in seconds, one a round, and bytes. What is absent says why under "absent"."""
    latents = pixels // 8
    naive = naive_unet(widths, latents, device)
    fast = fast_unet(naive)
    found: dict[str, Any] = {"device": device_name(device), "absent": {}}
    found["memory"] = {name: peak_bytes(unet, latents, device) for name, unet in (("naive", naive), ("fast", fast))}
    calls = {"naive": call_of(naive, latents), "fast": call_of(fast, latents)}
    reason = f"{found['device']} has no CUDA"
    if device == "cuda":
        calls["graph"] = graphed(call_of(fast, latents))
        reason = "torch_tensorrt is not installed"
        if importlib.util.find_spec("torch_tensorrt"):
            calls["TensorRT"] = call_of(torch.compile(copy.deepcopy(fast), backend="tensorrt"), latents)
    if "TensorRT" not in calls:
        found["absent"]["TensorRT"] = reason
    if "graph" not in calls:
        found["absent"]["graph"] = reason
    found["seconds"] = in_turns(calls, device)
    return found


def naive_unet(widths: tuple[int, ...], latents: int, device: str) -> Any:
    """Return the U-Net in float32, with attention as plain products, contiguous."""
    from diffusers.models.attention_processor import AttnProcessor
    from stream_shaped import shaped_unet

    unet = shaped_unet(widths, latents).eval().requires_grad_(False)
    unet.set_attn_processor(AttnProcessor())
    return unet.to(device)


def fast_unet(naive: Any) -> Any:
    """Return the same U-Net in float16, channels_last, with PyTorch's attention."""
    from diffusers.models.attention_processor import AttnProcessor2_0

    unet = copy.deepcopy(naive).half().to(memory_format=torch.channels_last)
    unet.set_attn_processor(AttnProcessor2_0())
    return unet


def call_of(unet: Any, latents: int) -> Call:
    """Return a call of the U-Net on one latent image, in its weights' dtype and on their device."""
    weight = next(unet.parameters())
    sample = torch.randn(1, 4, latents, latents).to(weight)
    prompt = torch.randn(1, _TOKENS, _TOKEN_WIDTH).to(weight)
    timestep = torch.tensor([499], device=weight.device)

    def call() -> Any:
        with torch.inference_mode():
            return unet(sample, timestep, prompt, return_dict=False)[0]

    return call


def graphed(call: Call) -> Call:
    """Return a call that replays what `call` does on the GPU, from a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_BLANK):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def peak_bytes(unet: Any, latents: int, device: str) -> int | None:
    """Return the bytes of the weights and the most that one call adds; None where the system does not say."""
    call = call_of(unet, latents)
    weights = sum(parameter.nbytes for parameter in unet.parameters())
    call()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return int(weights + torch.cuda.max_memory_allocated() - before)
    give_back()
    if not reset_peak_rss():
        return None
    resident = ResidentMemory()
    before = resident()
    call()
    return int(weights + max(0, peak_rss_bytes() - before))


def in_turns(calls: Mapping[str, Call], device: str) -> dict[str, list[float]]:
    """Return the seconds of a call, one value a round; every second round goes backwards."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(_BLANK):
            call()
    for number in range(_ROUNDS):
        for name in list(calls)[:: -1 if number % 2 else 1]:
            wait()
            began = time.perf_counter()
            for _ in range(_CALLS):
                calls[name]()
            wait()
            seconds[name].append((time.perf_counter() - began) / _CALLS)
    return seconds


def device_name(device: str) -> str:
    """Return a device's name for people."""
    return torch.cuda.get_device_name() if device == "cuda" else "the processor"


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    sizes = ((32, 64), 64) if sys.argv[2:] == ["small"] else (FIFTH, 256)
    print("answer " + json.dumps(measure(sys.argv[1], *sizes)))
