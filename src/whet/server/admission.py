"""Turn a prompt and its parameters into a request, or say why it cannot be served."""

import itertools
from collections.abc import Sequence

from whet.errors import MissingExtra, RequestError
from whet.models.memory_bank.state import LtmState
from whet.models.step import ServedModel
from whet.server.beginnings import UNREAD, Beginning, beginning
from whet.server.detokenizer import MarkedDetokenizer
from whet.server.grammars import Grammars, Guide
from whet.server.output_constraint import OutputConstraint
from whet.server.randomness import make_seed
from whet.server.request import Request
from whet.server.request_limits import RequestLimits
from whet.server.sampling_params import SamplingParams
from whet.server.stopping import OutputText
from whet.server.text import Detokenizer, Tokenizer

Prompt = str | Sequence[int]


class Admission:
    """Make requests for one model. Any thread may use it. `model` is for requests that begin at a state."""

    def __init__(
        self, tokenizer: Tokenizer | None, vocab_size: int, max_model_len: int, model: ServedModel | None = None
    ) -> None:
        self._tokenizer, self._model = tokenizer, model
        self._limits = RequestLimits(max_model_len=max_model_len, vocab_size=vocab_size)
        eos_ids = tokenizer.eos_ids if tokenizer is not None else ()
        self._eos_ids = frozenset(token_id for token_id in eos_ids if token_id < vocab_size)
        self._numbers = itertools.count(1)
        self._grammars = Grammars(tokenizer, vocab_size) if tokenizer is not None else None

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        cache_salt: str = "",
        guide: Guide | None = None,
        state: LtmState | Beginning | None = None,
    ) -> Request:
        """Return a request that can be queued.

        Args:
            request_id: By default, a number is counted up.
            guide: What `guide` returned for the structure of `params`; it stays as it is. By default, it is made now.
            state: What the model remembers of a text that the prompt goes on from; it stays as it is.

        Raises:
            RequestError: The request cannot be served, now or later.
        """
        params = params if params is not None else SamplingParams()
        params.check(self._limits.vocab_size)
        start = None
        if state is not None:
            start = state if isinstance(state, Beginning) else beginning(self._model, state)
        prompt_ids = self._token_ids(prompt, goes_on=start is not None)
        if start is not None:
            if params.prompt_logprobs is not None:
                message = "the text before a state is not there, and has no log-probabilities: leave these out"
                raise RequestError(message, param="prompt_logprobs")
            self._limits.check_length(start.num_tokens, 1)  # before a list of so many is made
            prompt_ids = [UNREAD] * start.num_tokens + prompt_ids
        self._limits.check_length(len(prompt_ids), params.max_tokens)
        longest = self._limits.max_model_len
        tokenizer = self._tokenizer
        if params.stop and tokenizer is None:
            message = "stop strings need a tokenizer, and the model has none: use stop_token_ids"
            raise RequestError(message, param="stop")
        if params.structure is not None:
            guide = guide.copy() if guide is not None else self.guide(params.structure)
        return Request(
            id=request_id if request_id is not None else f"request-{next(self._numbers)}",
            prompt_ids=prompt_ids,
            params=params,
            max_len=longest if params.max_tokens is None else len(prompt_ids) + params.max_tokens,
            seed=make_seed(params.seed),
            stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_ids),
            output=OutputText(_detokenizer(tokenizer, params), params.stop) if tokenizer is not None else None,
            cache_salt=cache_salt,
            guide=guide,
            beginning=start,
        )

    def guide(self, structure: OutputConstraint) -> Guide:
        """Return the beginning of a structure's grammar. A structure that is new is compiled, which takes time.

        Raises RequestError where it cannot be enforced, or there is nothing to enforce it with.
        """
        if self._grammars is None:
            message = "a structure needs a tokenizer, and the model has none"
            raise RequestError(message, param="structure")
        try:
            return self._grammars.guide(structure)
        except MissingExtra as error:
            raise RequestError(str(error), param="structure") from error

    def _token_ids(self, prompt: Prompt, *, goes_on: bool) -> list[int]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                message = "the model has no tokenizer.json: give the prompt as a list of token ids"
                raise RequestError(message, param="prompt")
            self._limits.check_bytes(prompt, self._tokenizer.most_bytes(self._limits.max_model_len))
            prompt = self._tokenizer.encode(prompt, add_special=not goes_on)
        return self._limits.prompt_ids(prompt)


def _detokenizer(tokenizer: Tokenizer, params: SamplingParams) -> Detokenizer:
    """Return what makes the text of an output. A structure is held to the very bytes that the text then has."""
    make = tokenizer.detokenizer if params.structure is None else tokenizer.byte_detokenizer
    if not params.shown_token_ids:
        return make()
    return MarkedDetokenizer(make, {token_id: tokenizer.token_text(token_id) for token_id in params.shown_token_ids})
