"""Read, load and look at what the model of an engine remembers of texts: `engine.memory`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from whet.errors import RequestError, TargetError
from whet.models.memory_bank.slots import memory_stats
from whet.models.memory_bank.state import LtmState
from whet.models.step import ServedModel
from whet.server.admission import Admission, Prompt
from whet.server.beginnings import Beginning, beginning, memory_of
from whet.server.completion import Completion
from whet.server.loop import EngineLoop
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams


class EngineMemory:
    """Give the long-term memory of an engine's model to its callers. Any thread may use it but the engine's own.

    A state is a plain object, as the module's: `state.save(path)` writes it, and requests that are given it begin at
    it. Models of other families keep no such state. For them, all calls raise RequestError.
    """

    def __init__(
        self,
        model: ServedModel,
        admission: Admission,
        loop: EngineLoop,
        join: Callable[[list[Request]], list[Completion]],
    ) -> None:
        self._model, self._admission, self._loop, self._join = model, admission, loop, join

    def read(self, prompt: Prompt, *, state: LtmState | None = None) -> LtmState:
        """Let the model read a prompt, and return what it remembers then.

        What is known of the prompt is not read again: to go on from the end of a completion, read its prompt and its
        tokens. `state` is what the prompt goes on from; None begins at nothing.

        Raises:
            RequestError: The prompt cannot be served, or was not read to its end.
        """
        memory_of(self._model)
        found: list[LtmState] = []
        request = self._admission.request(prompt, SamplingParams(max_tokens=0), state=state)
        request.on_state = found.append
        [done] = self._join([request])
        if not found:
            raise RequestError(f"the prompt was not read to its end: {done.error or 'the engine was closed'}")
        return found[0]

    def load(self, path: Path | str) -> LtmState:
        """Return the state in a file that `save` of a state wrote, here or in the module.

        Raises:
            TargetError: The file is missing or damaged, or the state is of another model.
        """
        memory, state = memory_of(self._model), LtmState.load(path)
        try:
            memory.check_state(state)
        except TargetError as error:
            raise TargetError(f"{path}: {error}") from error
        return state

    def beginning(self, path: Path | str) -> Beginning:
        """Load a state as `load` does, prepared for requests: `submit` then takes no time for it."""
        return beginning(self._model, self.load(path))

    def stats(self, source: str | LtmState) -> dict[str, Any]:
        """Return how a memory is used, as `get_memory_stats` of the module does.

        Args:
            source: A state, or the id of a running request. Its state is taken between two steps, without drafts.

        Raises:
            RequestError: No such request is running.
            EngineClosed: The engine has been closed.
        """
        memory = memory_of(self._model)
        if isinstance(source, str):
            source = self._loop.look(source, lambda request: memory.read_state(request.row))
        return memory_stats(source)
