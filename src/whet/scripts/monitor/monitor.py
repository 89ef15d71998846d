"""Watch a training loop from inside its process, with one line in it (`whet.Monitor`)."""

import atexit
import contextlib
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import psutil
from rich.console import Console

from whet.errors import OptionError
from whet.files import usable_directory, write_whole
from whet.measure.cores import allowed_cores
from whet.scripts.monitor import metrics
from whet.scripts.monitor.allocator import AllocatorCollector
from whet.scripts.monitor.gpu import GpuCollector
from whet.scripts.monitor.process import ProcessCollector
from whet.scripts.monitor.ranks import RankSums, exchanged
from whet.scripts.monitor.run import Facts, Run
from whet.scripts.monitor.sampler import Sampler
from whet.scripts.monitor.served_page import page_server
from whet.scripts.monitor.settings import MIN_INTERVAL_S
from whet.scripts.monitor.steps import Step, StepCounter, StepTotals, phases_of
from whet.scripts.monitor.summary import Summary, summarise
from whet.scripts.monitor.summary_page import render
from whet.scripts.monitor.terminal import show_summary
from whet.ui.network import LOOPBACK

if TYPE_CHECKING:
    from whet.scripts.monitor.torch_loop import OnStep, TorchLoop

JSON_FILE = "summary.json"
HTML_FILE = "summary.html"

Batch = TypeVar("Batch")


class Monitor:
    """Watch this process until `close`, the end of a `with` block, or the end of the program.

    One line is enough: steps and their phases are then taken from torch's optimizer, backward, forward and DataLoader.
    If the loop calls `step()`, its own steps are counted instead, exactly:

        with whet.Monitor(port=8765) as monitor:
            for inputs, targets in monitor.batches(loader):
                ...
                monitor.step(num_samples=len(inputs))

    Where several processes train together, as torchrun's, each has a monitor of its own, and reports to the first
    one's page. The others serve, show and write nothing.

    Args:
        name: The name in titles; the script's name by default.
        port: The port of the live page and /metrics; 0 takes any free one, None serves nothing.
        host: The address of the live page.
        interval_s: Seconds between samples, at least 0.05.
        out: A directory for summary.json and summary.html at the end.
        show: Whether to print the page's address and the summary on standard error.
        watch: Whether to take steps and phases from torch.
        share: The part of the samples and tokens given to `step` that this process computes; the rest is of others.

    Raises:
        OptionError: The port is in use, or the interval is too short.
        OutputError: The directory cannot be written.
        MissingExtra: The page needs the extra `monitor`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        port: int | None = None,
        host: str = LOOPBACK,
        interval_s: float = 1.0,
        out: str | Path | None = None,
        show: bool = True,
        watch: bool = True,
        share: float = 1.0,
    ) -> None:
        if not interval_s >= MIN_INTERVAL_S:
            raise OptionError(f"interval_s={interval_s}: samples must be at least {MIN_INTERVAL_S} s apart")
        self.run = Run(facts_of_this_process(name, interval_s))
        is_first = first_rank()
        self._out = make_directory(out) if is_first else None
        self._console = Console(stderr=True) if show and is_first else None
        self._server = page_server(self.run, host, port) if port is not None and is_first else None
        self._gpu = GpuCollector()
        self.run.gpu_names = self._gpu.names
        self._counter = StepCounter()
        collectors = (ProcessCollector(os.getpid()), self._gpu, AllocatorCollector())
        self._sampler = Sampler(self.run, collectors, self._take_steps)
        self._share, self._all_steps = share, StepTotals()
        self._waiting = _WaitTimer()
        self._step_began = time.perf_counter()
        self._owner = os.getpid()
        self._is_open = True
        self._has_own_steps = False
        self._phases_s: dict[str, float] = {}
        self._loop = _torch_loop(self._torch_stepped) if watch else None
        self._sampler.start()
        if self._server is not None:
            self._server.start()
            if self._console:
                self._console.print(f"whet monitor: {self._server.url}", highlight=False)
        atexit.register(self._close_at_exit)

    @property
    def url(self) -> str | None:
        """Return the live page's address, or None without a page."""
        return self._server.url if self._server else None

    def step(self, num_samples: int | None = None, num_tokens: int | None = None) -> None:
        """End a step. It began at the end of the step before, or at the first wait for data.

        From the first call on, only these steps count. Torch's own steps then only give their phases.
        """
        now = time.perf_counter()
        latency_s, self._step_began = now - self._step_began, now
        self._has_own_steps = True
        phases_s, self._phases_s = self._phases_s, {}
        if self._waiting.was_used:
            phases_s[metrics.DATA_WAIT] = self._waiting.take()
        self._counter.add(latency_s, phases_s, num_samples, num_tokens)

    def data_wait(self) -> contextlib.AbstractContextManager[None]:
        """Count the time inside as waiting for data: `with monitor.data_wait(): batch = next(iterator)`."""
        self._begin_first_step()
        return self._waiting

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader. The time that it takes to get each counts as waiting for data."""
        self._begin_first_step()
        iterator = iter(loader)
        while True:
            with self._waiting:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    def summary(self) -> Summary:
        """Return the summary of the run so far."""
        return summarise(self.run)

    def close(self, message: str = "") -> None:
        """Stop watching: take a last sample, show and write the summary, and tell the page.

        Only the first call has an effect. `message` says what went wrong; "" if nothing did.
        """
        if not self._is_open or os.getpid() != self._owner:  # a forked worker has this object, but not its threads
            return
        self._is_open = False
        atexit.unregister(self._close_at_exit)
        if self._loop is not None:
            self._loop.stop()
        self._sampler.stop()
        self.run.end(message=message)
        self._gpu.close()
        if self._server is not None:
            self._server.stop()
        if self._console:
            show_summary(self._console, self.summary())
        if self._out is not None:
            write_summary(self.run, self._out)

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close("" if error is None else _error_text(error))

    def _close_at_exit(self) -> None:
        # The interpreter has just printed the traceback of this error. At a prompt, errors do not end the program.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self.close("" if error is None else _error_text(error))

    def _torch_stepped(self, step: Step, num_samples: int | None, num_tokens: int | None) -> None:
        """Count a step that torch shows, or only its phases if the loop calls `step()` itself."""
        if not self._has_own_steps and not self._waiting.was_used:
            self._counter.add_step(step, num_samples, num_tokens)
            return
        phases_s = phases_of(step)
        if not self._has_own_steps:
            phases_s = _with_wait(phases_s, self._waiting.take(), step.seconds)
            self._counter.add(step.seconds, phases_s, num_samples, num_tokens)
            return
        # The rest is computed from the loop's own step. Torch's rest may include the loop's own wait for data.
        for name, seconds in phases_s.items():
            if name != metrics.REST:
                self._phases_s[name] = self._phases_s.get(name, 0.0) + seconds

    def _take_steps(self) -> StepTotals:
        """Return the steps since the last call, and report them to the first rank."""
        taken = self._counter.take()
        self._all_steps.merge(taken)
        # The ranks' store is gone where another one has ended; the run says so itself.
        with contextlib.suppress(RuntimeError, ValueError):
            for sums in exchanged(self._sums):
                if sums.num_steps:
                    self.run.ranks.add(sums)
        return taken

    def _sums(self, rank: int) -> RankSums:
        counts = (self._all_steps.num_samples, self._all_steps.num_tokens)
        samples, tokens = (None if count is None else round(count * self._share) for count in counts)
        own = replace(self._all_steps, num_samples=samples, num_tokens=tokens)
        return RankSums.of(own, rank, self.run.facts.host, self.run.facts.pid, psutil.Process().memory_info().rss)

    def _begin_first_step(self) -> None:
        if not self._waiting.was_used:
            self._waiting.was_used = True
            self._step_began = time.perf_counter()


class _WaitTimer(contextlib.AbstractContextManager[None]):
    """Sum up the time spent inside since it was last taken."""

    def __init__(self) -> None:
        self.was_used = False
        self._total_s = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._total_s += time.perf_counter() - self._began

    def take(self) -> float:
        taken, self._total_s = self._total_s, 0.0
        return taken


def _with_wait(phases_s: dict[str, float], wait_s: float, latency_s: float) -> dict[str, float]:
    """Set the wait for data in a step's phases to the loop's own measurement. Torch counted this time as rest."""
    known = {name: s for name, s in phases_s.items() if name not in (metrics.REST, metrics.DATA_WAIT)}
    return known | {metrics.DATA_WAIT: min(wait_s, max(0.0, latency_s - sum(known.values())))}


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _torch_loop(on_step: "OnStep") -> "TorchLoop":
    # This loads torch, which the process of `whet monitor` itself must not do.
    module = import_module("whet.scripts.monitor.torch_loop")
    loop: TorchLoop = module.TorchLoop(on_step)
    return loop


def first_rank() -> bool:
    """Return whether this process is the first of those that torchrun, or something like it, has started."""
    return os.environ.get("RANK", "0") == "0" or int(os.environ.get("WORLD_SIZE", "1")) < 2


def facts_of_this_process(name: str | None, interval_s: float) -> Facts:
    words = getattr(sys, "orig_argv", sys.argv)
    return facts(name or Path(sys.argv[0]).name or "python", words, os.getpid(), interval_s)


def facts(name: str, command: list[str], pid: int, interval_s: float) -> Facts:
    return Facts(
        name=name,
        command=shlex.join(command),
        pid=pid,
        host=platform.node(),
        interval_s=interval_s,
        num_cores=len(allowed_cores()),
        memory_bytes=psutil.virtual_memory().total,
    )


def make_directory(out: str | Path | None) -> Path | None:
    """Make the directory for the summary now.

    Raises:
        OutputError: It cannot be made or written to.
    """
    return None if out is None else usable_directory(Path(out))


def write_summary(run: Run, directory: Path) -> None:
    """Write summary.json and summary.html, each whole or not at all.

    Raises:
        OutputError: A file cannot be written.
    """
    write_whole(directory / JSON_FILE, summarise(run).to_json())
    write_whole(directory / HTML_FILE, render(run))
