"""Hold the end that one process has of a group: processes of this machine that compute a model together."""

import ctypes
import mmap
import weakref

import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.process_group.structs import GroupSizesStruct

__all__ = ["GroupSizesStruct", "ProcessGroup", "group_bytes"]


def group_bytes(library: Library, sizes: GroupSizesStruct) -> int:
    """Return the bytes that the processes share. Pages take memory once they are used."""
    return int(library.functions.whet_group_bytes(ctypes.byref(sizes)))


class ProcessGroup:
    """Join a group in memory that all processes have mapped, and that began as zeros.

    Attributes:
        handle: What the structures of kernels take.
        logits: The rows of logits that all processes write their columns of, float32 [most_tokens, vocab].
    """

    def __init__(self, library: Library, sizes: GroupSizesStruct, memory: mmap.mmap) -> None:
        self._functions = library.functions
        self._memory = (ctypes.c_char * len(memory)).from_buffer(memory)  # it stays mapped as long as this lives
        handle = self._functions.whet_group_new(ctypes.byref(sizes), ctypes.addressof(self._memory))
        weakref.finalize(self, self._functions.whet_group_free, handle)
        self.handle = ctypes.c_void_p(handle)
        first = self._functions.whet_group_logits(self.handle) - ctypes.addressof(self._memory)
        count = sizes.most_tokens * sizes.vocab
        logits = torch.frombuffer(memory, dtype=torch.float32, count=count, offset=first)
        self.logits: Tensor = logits.view(sizes.most_tokens, sizes.vocab)

    @property
    def failed(self) -> int | None:
        """Return the rank of a process that has ended or did not answer in time; None while all go on."""
        found = self._functions.whet_group_failed(self.handle)
        return found - 1 if found else None

    @property
    def waited_s(self) -> float:
        """Return how long this process has waited for the others within steps, and added what they have."""
        return float(self._functions.whet_group_waited(self.handle)) / 1e9

    def fail(self, rank: int) -> None:
        """Say that a process has ended. Nobody waits for it from now on, and the step ends with an error."""
        self._functions.whet_group_fail(self.handle, rank)

    def end(self) -> None:
        """Say that there will be no more steps."""
        self._functions.whet_group_end(self.handle)
