"""Handle the closures of `optimizer.step(closure)`, which compute the loss and the gradients within the step."""

from collections.abc import Callable
from typing import Any

Closure = Callable[[], Any]


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closure | None:
    """Return the closure among the arguments of a step, without the optimiser; None where there is none."""
    found = kwargs.get("closure", args[0] if args else None)
    return found if callable(found) else None


def with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure) -> tuple[Any, ...]:
    """Return the arguments and keywords of a step, the optimiser first, with another closure in place of its own."""
    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), kwargs


class FirstCall:
    """Call a closure, and do something after its first call in a step: an optimiser such as LBFGS calls it again."""

    def __init__(self, closure: Closure, after: Callable[[], None]) -> None:
        self._closure, self._after = closure, after
        self._was_called = False

    def __call__(self) -> Any:
        loss = self._closure()
        if not self._was_called:
            self._was_called = True
            self._after()
        return loss
