"""Estimate how many prompt tokens fit into a step beside running outputs, from the cost of recent steps."""

_MIN_TOKENS = 16  # the smallest chunk of a prompt: with smaller ones, prompts would take too many steps
_MEMORY = 0.7  # the weight that earlier steps keep when a new one is added


class StepCost:
    """Estimate the milliseconds per token from steps with prompts in them.

    The time per token grows with the context and falls with the size of the step, so the estimate follows the latest
    steps. Before the first measurement, any size is allowed.
    """

    def __init__(self, max_step_ms: float) -> None:
        self.max_step_ms = max_step_ms
        self._ms_per_token: float | None = None

    def observe(self, num_tokens: int, num_prompt_tokens: int, step_ms: float) -> None:
        """Take in a measured step. Steps with few prompt tokens are ignored: they tell nothing about large ones."""
        if num_prompt_tokens < _MIN_TOKENS:
            return
        new = step_ms / num_tokens
        old = self._ms_per_token
        self._ms_per_token = new if old is None else _MEMORY * old + (1 - _MEMORY) * new

    def max_prompt_tokens(self, num_other_tokens: int) -> int | None:
        """Return the most prompt tokens for a step with `num_other_tokens` others, or None for any number."""
        if not self._ms_per_token:
            return None
        return max(_MIN_TOKENS, int(self.max_step_ms / self._ms_per_token) - num_other_tokens)
