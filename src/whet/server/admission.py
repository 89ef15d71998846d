"""From what was asked to a request: tokens, the longest it may become, what ends it; or why it cannot be served."""

import itertools
import operator
from collections.abc import Sequence

from whet.errors import RequestError
from whet.server.randomness import make_seed
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.stopping import OutputText
from whet.server.text import Tokenizer

Prompt = str | Sequence[int]


class Admission:
    """Makes requests for one model. From any thread."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, max_model_len: int) -> None:
        self._tokenizer, self._vocab_size, self._max_model_len = tokenizer, vocab_size, max_model_len
        eos_ids = tokenizer.eos_ids if tokenizer is not None else ()
        self._eos_ids = frozenset(token_id for token_id in eos_ids if token_id < vocab_size)
        self._numbers = itertools.count(1)

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        cache_salt: str = "",
    ) -> Request:
        """A request to be queued. Raises RequestError where it can never be served."""
        params = params if params is not None else SamplingParams()
        params.check(self._vocab_size)
        prompt_ids = self._token_ids(prompt)
        tokenizer = self._tokenizer
        if params.stop and tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and the model has none: use stop_token_ids")
        return Request(
            id=request_id if request_id is not None else f"request-{next(self._numbers)}",
            prompt_ids=prompt_ids,
            params=params,
            max_len=self._max_len(len(prompt_ids), params),
            seed=make_seed(params.seed),
            stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_ids),
            output=OutputText(tokenizer.detokenizer(), params.stop) if tokenizer is not None else None,
            cache_salt=cache_salt,
        )

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise RequestError("the model has no tokenizer.json: give the prompt as a list of token ids")
            prompt = self._tokenizer.encode(prompt)
        try:
            token_ids = list(map(operator.index, prompt))
        except TypeError as error:
            raise RequestError("a prompt is a text or a list of token ids, which are whole numbers") from error
        if not token_ids:
            raise RequestError("the prompt is empty: give at least one token")
        wrong = next((token_id for token_id in token_ids if not 0 <= token_id < self._vocab_size), None)
        if wrong is not None:
            raise RequestError(f"the prompt has the token {wrong}; the model's are 0 to {self._vocab_size - 1}")
        return token_ids

    def _max_len(self, num_prompt: int, params: SamplingParams) -> int:
        longest = self._max_model_len
        wanted = params.max_tokens
        if wanted is None:
            if num_prompt >= longest:
                raise RequestError(f"the prompt has {num_prompt} tokens; with the output it may have {longest}")
            return longest
        if num_prompt + wanted > longest:
            raise RequestError(
                f"the prompt has {num_prompt} tokens and max_tokens={wanted} are asked for, {num_prompt + wanted} in "
                f"all; the model takes {longest}"
            )
        return num_prompt + wanted
