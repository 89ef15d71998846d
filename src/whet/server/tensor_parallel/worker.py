"""Run one of the processes that compute a model together, but not the first. It is started as a module.

It is asked over its standard input, by the messages of isolated_process.py, to load its share and to allocate. Then it
computes the steps that the first process calls in the memory that they share. It ends when its input is closed, which
the system does too when the first process is killed.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import IO

import torch

from whet.errors import WhetError
from whet.kernels.build import library
from whet.measure.cores import bind_thread
from whet.models.families import open_share
from whet.models.step import Allocation
from whet.server.isolated_process import packed, received
from whet.server.tensor_parallel.shares import Given, mapped

NO_MEMORY = 3  # the exit code where there is no memory for a step


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the first process ends this one, once it has no more steps
        signal.signal(number, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may write among the answers
    code = 0
    try:
        _run(source, sink)
    except WhetError as error:
        _answer(sink, {"error": str(error)})
        code = 2
    except MemoryError as error:
        sys.stderr.write(f"{error}\n")
        code = NO_MEMORY
    sys.stderr.flush()
    os._exit(code)  # a thread still reads the input, on which an orderly exit would wait


def _run(source: IO[bytes], sink: IO[bytes]) -> None:
    first = received(source)
    if first is None:
        return
    given = Given.from_message(first[0])
    bind_thread(given.cores)
    torch.set_num_threads(given.num_threads)
    library().set_threads(given.num_threads)
    model = open_share(given.directory, given.options, given.share)
    _answer(sink, {"loaded": model.weight_bytes})
    second = received(source)
    if second is None:
        return
    memory = mapped(given.memory, model.shared_bytes(given.bounds))
    os.close(given.memory)
    model.join(given.bounds, memory)
    model.allocate(Allocation(**second[0]))
    _answer(sink, {"allocated": True})
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    model.follow()


def _answer(sink: IO[bytes], message: Mapping[str, object]) -> None:
    sink.write(packed(message))
    sink.flush()


def _end_with(source: IO[bytes]) -> None:
    """End the process when the first one closes its end, or has been killed."""
    source.read()
    os._exit(0)


if __name__ == "__main__":
    main()
