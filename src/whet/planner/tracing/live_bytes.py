"""Count the bytes of the tensors that live at once, as operators make them and as they are freed."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import FakeWork
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Segment = tuple[int | str, ...]
_WRAPPERS = (DTensor, AsyncCollectiveTensor)  # which hold the tensors that have the numbers
_OF_MESSAGES = frozenset({"c10d", "_c10d_functional", "fsdp"})  # the operators that fill and read buffers of messages


def rounded(size: int, to: int) -> int:
    """Return a number of bytes rounded up to a multiple, as allocators do."""
    return -(-size // to) * to


class Block:
    """Hold what is known of one block of memory: its bytes, the phase that it was made in, whether a message used it.

    Attributes:
        alive: Notices when the block is freed.
    """

    __slots__ = ("alive", "in_message", "phase", "size")

    def __init__(self, alive: "weakref.ref[torch.UntypedStorage]", size: int, phase: str) -> None:
        self.alive, self.size, self.phase, self.in_message = alive, size, phase, False


class LiveBytes(TorchDispatchMode):
    """Count the bytes of blocks that operators make within the block of `with`, each once, until they are freed.

    Of tensors without numbers (FakeTensorMode, entered before) it answers messages itself: torch's fake process group
    would copy once for each rank of a group.

    Attributes:
        phase: What the program does now; blocks remember the phase that they were made in.
        segment: Which part of a step runs now; each has a peak of its own.
        now: The bytes that live now.
        peaks: The most bytes that lived in each segment since `begin`, and after how many events.
        num_events: The operators since `begin`, and the times that storages changed their sizes.
    """

    def __init__(self, *, rounded_to: int = 1) -> None:
        """Prepare to count.

        Args:
            rounded_to: Sizes are rounded up to multiples of so many bytes, as the allocator of a GPU does.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "setup"
        self.segment: Segment = ()
        self.peaks: dict[Segment, tuple[int, int]] = {}
        self.now = self.num_events = 0
        self._rounded_to = rounded_to
        self._blocks: dict[int, Block] = {}
        self._parameters: set[int] = set()
        self._fake_mode: Any = None
        self._resize = torch.UntypedStorage.resize_
        self._look: Callable[[], None] | None = None
        self._looks_at: frozenset[int] = frozenset()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler

    def __enter__(self) -> "LiveBytes":
        self._fake_mode = active_fake_mode()
        resize, blocks = self._resize, self._blocks

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            found = resize(storage, size)
            if (block := blocks.get(storage._cdata)) is not None:
                self._change(block, storage.nbytes())
                self._happened()
            return found

        # FSDP frees and takes memory by resizing storages, which no mode sees.
        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def begin(self, look_at: Iterable[int] = (), look: Callable[[], None] | None = None) -> None:
        """Count events and look for peaks from now on.

        Args:
            look_at: After how many events `look` is called, each time.
        """
        self.num_events, self.peaks = 0, {}
        self._looks_at, self._look = frozenset(look_at), look

    def add(self, parameters: Iterable[Tensor], others: Iterable[Tensor] = ()) -> None:
        """Count tensors that were made before. Copies of parameters in other numbers are of the phase "copies"."""
        for tensor in parameters:
            self._see(tensor)
            self._parameters.add(tensor.untyped_storage()._cdata)
        for tensor in others:
            self._see(tensor)

    def by_kind(self, named: Sequence[tuple[str, Iterable[Tensor]]]) -> Counter[str]:
        """Return the bytes that live now by kind.

        Args:
            named: Kinds with their tensors, local ones; the first kind that names a block counts. Other blocks are
                "message" where a message filled or read them, else the phase that they were made in.
        """
        kinds: dict[int, str] = {}
        for kind, tensors in named:
            for tensor in tensors:
                kinds.setdefault(tensor.untyped_storage()._cdata, kind)
        found: Counter[str] = Counter()
        for key, block in self._blocks.items():
            found[kinds.get(key) or ("message" if block.in_message else block.phase)] += block.size
        return found

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # torch asks for it more often than for anything else
        if any(issubclass(one, _WRAPPERS) for one in types):
            return NotImplemented  # what it holds comes here by itself
        given = kwargs or {}
        is_fake = self._fake_mode is not None
        if is_fake and func.namespace == "c10d":
            found = _answered(func, args)
        elif is_fake and func is torch.ops._c10d_functional.wait_tensor.default:
            found = args[0]  # a tensor without numbers would be copied
        else:
            found = func(*args, **given)
        if active_fake_mode() is not self._fake_mode:
            return found  # torch itself tries shapes
        made = [one for one in tree_leaves(found) if isinstance(one, Tensor)]
        for tensor in made:
            self._see(tensor)
        if func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self._parameters:
            self._see(found).phase = "copies"
        if func.namespace in _OF_MESSAGES:
            taken = [one for one in tree_leaves((args, given)) if isinstance(one, Tensor)]
            for tensor in (*made, *taken):
                self._see(tensor).in_message = True
        self._happened()
        return found

    def _see(self, tensor: Tensor) -> Block:
        storage = tensor.untyped_storage()
        key = storage._cdata
        block = self._blocks.get(key)
        if block is None:
            block = Block(weakref.ref(storage, lambda _: self._freed(key)), 0, self.phase)
            self._blocks[key] = block
        self._change(block, storage.nbytes())
        return block

    def _change(self, block: Block, size: int) -> None:
        taken = rounded(size, self._rounded_to)
        self.now += taken - block.size
        block.size = taken

    def _freed(self, key: int) -> None:
        self.now -= self._blocks.pop(key).size

    def _happened(self) -> None:
        self.num_events += 1
        known = self.peaks.get(self.segment)
        if known is None or self.now > known[0]:
            self.peaks[self.segment] = self.now, self.num_events
        if self._look is not None and self.num_events in self._looks_at:
            self._look()


def _answered(func: Any, args: tuple[Any, ...]) -> Any:
    """Return what an operator of torch.distributed returns once the message has come."""
    work = FakeWork().boxed()
    return work if len(func._schema.returns) == 1 else (args[0], work)
