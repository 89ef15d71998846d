"""Start a command, watch it and all processes that it starts from outside, and return its exit code.

Python processes among them report their steps (see `attach`). The command keeps standard input, output and error, and
receives the signals that are sent to this process.
"""

import contextlib
import subprocess
import time
from collections.abc import Sequence

from whet.errors import TargetError
from whet.measure.isolate import signal_name
from whet.scripts.injection.launching import SignalsToChild, environment, name_of
from whet.scripts.monitor.gpu import GpuCollector
from whet.scripts.monitor.messages import MODULE_VARIABLE, SOCKET_VARIABLE
from whet.scripts.monitor.monitor import facts
from whet.scripts.monitor.process import ProcessCollector
from whet.scripts.monitor.receiver import Receiver
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.sampler import Sampler
from whet.scripts.monitor.served_page import page_server


class Launch:
    """Start and watch one command.

    Args:
        name: The name of the run; None takes the script's.
        address: The host and port of the live page; None serves none.

    Raises:
        TargetError: The command cannot be started.
        OptionError: The port is in use.
    """

    def __init__(
        self, command: Sequence[str], *, name: str | None, interval_s: float, address: tuple[str, int] | None
    ) -> None:
        words = list(command)
        self.run = Run(facts(name or name_of(words), words, 0, interval_s))
        self._server = page_server(self.run, *address) if address else None
        self._receiver = Receiver(self.run)
        self._signals = SignalsToChild()  # first, so that no signal ends this process and leaves the child unwatched
        try:
            added = {SOCKET_VARIABLE: str(self._receiver.path), MODULE_VARIABLE: "whet.scripts.monitor.attach"}
            self._child = subprocess.Popen(words, env=environment(added))
            self._signals.forward_to(self._child)
        except OSError as error:
            self._signals.restore()
            self._receiver.finish(timeout_s=0)
            self.close()
            raise TargetError(f"cannot run {words[0]}: {error.strerror or error}") from error
        self.run.facts = facts(self.run.facts.name, words, self._child.pid, interval_s)
        self._gpu = GpuCollector()
        self.run.gpu_names = self._gpu.names
        collectors = (ProcessCollector(self._child.pid), self._gpu, self._receiver)
        self._sampler = Sampler(self.run, collectors, self._receiver.take_steps)

    @property
    def url(self) -> str | None:
        return self._server.url if self._server else None

    def wait(self) -> int:
        """Watch until the command ends. Return its exit code: 128 plus the signal's number if a signal ended it."""
        try:
            self._sampler.start()
            if self._server is not None:
                self._server.start()
            code = self._child.wait()
            self._receiver.finish()
            self._sampler.stop()
        finally:
            self._signals.restore()
        self._gpu.close()
        if code >= 0:
            self.run.end(exit_code=code)
        else:
            code, name = 128 - code, signal_name(-code)
            self.run.end(exit_code=code, message=f"ended by {name}")
        return code

    def serve_until_interrupted(self) -> None:
        """Keep the page up after the end, until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)

    def close(self) -> None:
        """Stop the page, once it knows of the end."""
        if self._server is not None:
            self._server.stop()
