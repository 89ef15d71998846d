"""How many tokens of prompts fit into a step beside running outputs, by what steps have cost lately."""

_MIN_TOKENS = 16  # a chunk is never smaller: below, a prompt would take longer in all than it delays others
_MEMORY = 0.7  # the weight that the past keeps when a new step is seen


class StepCost:
    """Milliseconds a token, learnt from the steps that had prompts in them; `max_step_ms` is what a step may take.

    The price of a token rises with the context and falls with the size of the step, so the estimate follows the latest
    steps. Right after the start, with nothing measured, any size is allowed.
    """

    def __init__(self, max_step_ms: float) -> None:
        self.max_step_ms = max_step_ms
        self._ms_per_token: float | None = None

    def observe(self, num_tokens: int, num_prompt_tokens: int, step_ms: float) -> None:
        """A step has been measured. Steps of few prompt tokens say nothing about large ones."""
        if num_prompt_tokens < _MIN_TOKENS:
            return
        new = step_ms / num_tokens
        old = self._ms_per_token
        self._ms_per_token = new if old is None else _MEMORY * old + (1 - _MEMORY) * new

    def max_prompt_tokens(self, num_other_tokens: int) -> int | None:
        """Tokens of prompts that may share a step with so many others; None: as many as wanted."""
        if not self._ms_per_token:
            return None
        return max(_MIN_TOKENS, int(self.max_step_ms / self._ms_per_token) - num_other_tokens)
