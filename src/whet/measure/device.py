"""Decide which device a name means, and which one tensors lie on."""

from collections.abc import Iterable

import torch

from whet.errors import OptionError
from whet.measure.device_names import check_device_name


def check_usable(name: str, option: str) -> None:
    """Raise OptionError where torch cannot use a device here: cpu, cuda for the current GPU, or cuda:NUMBER.

    `option` is what names it, for the message, as "--device".
    """
    check_device_name(name, option)
    if name == "cpu":
        return
    if not torch.cuda.is_available():
        built = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise OptionError(f"{option} {name} needs a GPU that torch can use, and {built}; leave it out to use the CPU")
    number = name.partition(":")[2]
    if number and int(number) >= (num_gpus := torch.cuda.device_count()):
        raise OptionError(f"{option} {name}: torch finds {num_gpus} GPUs here, the last one is cuda:{num_gpus - 1}")


def usable_device(name: str, option: str) -> torch.device:
    """Return the device that a name means, a GPU with its number; see check_usable."""
    check_usable(name, option)
    if name == "cpu":
        return torch.device(name)
    return torch.device("cuda", int(name.partition(":")[2] or torch.cuda.current_device()))


def device_type_of(*tensors: Iterable[object]) -> str:
    """Return the kind of device, as "cpu" or "cuda", of the first tensor in the iterables, in order; "cpu" for none.

    Give parameters first, then buffers, then inputs. What is no tensor is passed over.
    """
    found = next((x for some in tensors for x in some if isinstance(x, torch.Tensor)), None)
    return "cpu" if found is None else found.device.type


def use_device_of(tensor: torch.Tensor) -> None:
    """Make the GPU that holds a tensor the current one, so that the clock waits for it and its memory is read."""
    if tensor.device.type == "cuda":
        torch.cuda.set_device(tensor.device)
