"""Give another thread the settings that PyTorch keeps for each thread."""

import contextlib
from collections.abc import Callable, Iterator

import torch


def thread_settings() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a function whose context manager sets, in another thread, what the calling thread has set now.

    These are whether gradients are recorded, the default device, and the current CUDA device.
    """
    records, device = torch.is_grad_enabled(), torch.get_default_device()
    cuda = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    @contextlib.contextmanager
    def in_force() -> Iterator[None]:
        if cuda is not None:
            torch.cuda.set_device(cuda)
        with (
            torch.set_grad_enabled(records),
            torch.device(device) if device.type != "cpu" else contextlib.nullcontext(),
        ):
            yield

    return in_force
