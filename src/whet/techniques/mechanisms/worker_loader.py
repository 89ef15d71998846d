"""Make a DataLoader equal to another one but for its workers: the same batches in the same order."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset


class WorkerLoader(DataLoader[Any]):
    """Load with worker processes that may stay from pass to pass, in the order of a loader whose workers do not.

    PyTorch draws a seed for its workers at the beginning of each pass, from the generator that the order comes from as
    well. With workers that stay it draws one for the first pass only, so that the second pass would have another order.
    This class draws it in each pass. Where a pass is still going on when another one begins, the other one gets workers
    of its own: PyTorch would begin the first pass again.
    """

    _draws_each_pass = True
    _began = False
    _present: "weakref.ref[_Pass] | None" = None

    def __iter__(self) -> Any:
        if not self.persistent_workers:
            return super().__iter__()
        present = None if self._present is None else self._present()
        if present is not None and not present.has_ended:
            return iter(with_workers(self, persistent_workers=False))
        if self._began and self._draws_each_pass:
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        batches = super().__iter__()
        if not self._began:
            # Held here, the workers do not end within the collection of a cycle, where PyTorch waits 5 s for them.
            weakref.finalize(self, list.clear, [batches])
        self._began = True
        made = _Pass(batches)
        self._present = weakref.ref(made)
        return made


class _Pass:
    """Give the batches of one pass of workers that stay, and know whether it is over."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.has_ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.has_ended:
            raise StopIteration
        try:
            return next(self._batches)
        except BaseException:
            self.has_ended = True
            raise


def with_workers(loader: DataLoader[Any], **changes: Any) -> WorkerLoader:
    """Return a loader with other settings, over the same data set, samplers, collate function and generator objects."""
    settings: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "pin_memory": loader.pin_memory,
        "collate_fn": loader.collate_fn,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "in_order": loader.in_order,
        **changes,
    }
    if isinstance(loader.dataset, IterableDataset):
        settings |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        settings |= {"batch_size": None, "sampler": loader.sampler}
    elif loader.batch_size is None:
        settings["batch_sampler"] = loader.batch_sampler
    else:
        settings |= {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}
    made = WorkerLoader(loader.dataset, **settings)
    made._draws_each_pass = not loader.persistent_workers or getattr(loader, "_draws_each_pass", False)
    return made
