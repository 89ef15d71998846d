"""Find out which DataLoader a script goes over, and put another one in its place, in the middle of a pass too."""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from whet.profiling.step.patching import Patches
from whet.techniques.mechanisms.worker_loader import with_workers

AnyLoader = DataLoader[Any]


class LoaderPasses:
    """Watch the passes over DataLoaders until the loop is found. Classes derived from DataLoader are left alone."""

    def __init__(self) -> None:
        self.num_batches = 0
        self._patches = Patches()
        self._latest: weakref.ref[_Pass] | None = None
        self._replaced: tuple[AnyLoader, Iterable[Any]] | None = None
        self._patches.set(DataLoader, "__iter__", self._beginning(DataLoader.__iter__))

    @property
    def loader(self) -> AnyLoader | None:
        """Return the loader that gave the latest batch, if its pass goes on."""
        latest = self._going_on()
        return None if latest is None else latest.loader

    def replace(self, change: Callable[[AnyLoader], Iterable[Any]]) -> None:
        """Go over `change(loader)` from now on where the script goes over its loader.

        The rest of the present pass comes from the changed loader too, unless workers have read ahead already.
        """
        latest = self._going_on()
        assert latest is not None, "there is a pass: a technique has checked its loader"
        self._replaced = (latest.loader, change(with_workers(latest.loader)))
        if (rest := latest.rest) is not None:
            latest.go_on_with(iter(change(rest)))

    def end(self) -> None:
        """Leave DataLoader as it was. Passes that have begun go on."""
        self._patches.restore()

    def _going_on(self) -> "_Pass | None":
        latest = None if self._latest is None else self._latest()
        return None if latest is None or latest.has_ended else latest

    def _note(self, latest: "_Pass") -> None:
        self._latest = weakref.ref(latest)
        self.num_batches += 1

    def _beginning(self, begin: Callable[[AnyLoader], Iterator[Any]]) -> Callable[[AnyLoader], Iterator[Any]]:
        @functools.wraps(begin)
        def began(loader: AnyLoader) -> Iterator[Any]:
            if self._replaced is not None:
                old, new = self._replaced
                return iter(new) if loader is old else begin(loader)
            return _Pass(loader, begin, self._note) if type(loader) is DataLoader else begin(loader)

        return began


class _Pass:
    """Give the batches of one pass, first from the loader, later perhaps from another.

    `note` is called with this pass after each batch.
    """

    def __init__(
        self, loader: AnyLoader, begin: Callable[[AnyLoader], Iterator[Any]], note: "Callable[[_Pass], None]"
    ) -> None:
        self.loader = loader
        self.has_ended = False
        self._note = note
        self._order: Iterator[Any] | None = None
        if loader.num_workers or isinstance(loader.dataset, IterableDataset):
            self._batches = begin(loader)
        else:
            self._order = iter(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
            self._batches = begin(_in_order(loader, self._order, loader.generator))

    @property
    def rest(self) -> AnyLoader | None:
        """Return a loader of the batches that are left, in the order that is drawn. None where they cannot be told.

        It draws no seed from the loop's generators.
        """
        return None if self._order is None else _in_order(self.loader, self._order, torch.Generator())

    def go_on_with(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except BaseException:
            self.has_ended = True
            raise
        self._note(self)
        return batch


def _in_order(loader: AnyLoader, order: Iterator[Any], generator: torch.Generator | None) -> AnyLoader:
    """Return a loader without workers that goes over an order once."""
    settings: dict[str, Any] = (
        {"batch_size": None, "sampler": order} if loader.batch_sampler is None else {"batch_sampler": order}
    )
    return DataLoader(
        loader.dataset,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        pin_memory=loader.pin_memory,
        generator=generator,
        **settings,
    )
