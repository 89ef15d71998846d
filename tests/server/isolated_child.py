"""A child for tests of isolated processes: it crashes, hangs or takes memory when it is asked to."""

import os
import signal
import time
from typing import Any

from whet.server.isolated_process import answer_messages


def _answer(message: dict[str, Any]) -> dict[str, object]:
    if message["do"] == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if message["do"] == "spin":
        while True:
            pass
    if message["do"] == "sleep":
        time.sleep(100)
    if message["do"] == "fill":
        try:
            return {"size": len(bytes(2**32))}
        except MemoryError:
            return {"size": 0}
    return {"pid": os.getpid()}


if __name__ == "__main__":
    answer_messages(_answer, cpu_s=0.2, more_bytes=2**29)
