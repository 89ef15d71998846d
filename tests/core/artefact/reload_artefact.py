"""Runs artefacts in fresh processes that have none of the code that built them.

Reads one directory a line; answers "ok", or the error on one line. Each artefact is loaded in a fork of this process,
which has imported torch, whet and the modules that it was called with, and done nothing else: as good as new, without
importing them again. One for a GPU is loaded in this process itself, as CUDA outlives no fork.

DIR holds the artefact; DIR.inputs.safetensors its inputs, named by batch and position ("0.1"); their metadata may name
a device for all of them. The outputs go to DIR.outputs.safetensors.
"""

import importlib
import os
import sys
import traceback

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import whet.core.artefact


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        if _device(line.strip()) != "cpu":
            print(_answer(line.strip()), flush=True)
            continue
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.close(read_end)
            with os.fdopen(write_end, "w") as answer:
                answer.write(_answer(line.strip()))
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as answer:
            text = answer.read()
        os.wait()
        print(text or "the process died", flush=True)


def _device(directory: str) -> str:
    with safe_open(f"{directory}.inputs.safetensors", framework="pt") as file:
        return (file.metadata() or {}).get("device", "cpu")


def _answer(directory: str) -> str:
    try:
        _run(directory)
    except Exception:  # noqa: BLE001 - whatever it is, the test that asked reports it
        return traceback.format_exc().strip().replace("\n", " | ")
    return "ok"


def _run(directory: str) -> None:
    artefact = whet.core.artefact.load(directory)
    inputs = load_file(f"{directory}.inputs.safetensors", device=_device(directory))
    outputs = {}
    for batch in sorted({name.partition(".")[0] for name in inputs}):
        tensors = [inputs[name] for name in sorted(inputs) if name.startswith(f"{batch}.")]
        with torch.no_grad():
            found = artefact.run(*tensors)
        outputs |= {f"{batch}.{i}": y.detach().clone().contiguous() for i, y in enumerate(found)}
    save_file(outputs, f"{directory}.outputs.safetensors")


if __name__ == "__main__":
    main()
