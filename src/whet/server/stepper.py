"""Run step after step, without a thread of its own: schedule, run the model, choose tokens, update the requests."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.errors import named_reason
from whet.models.memory_bank.state import LtmState
from whet.models.step import ServedModel
from whet.server.beginnings import memory_of
from whet.server.completion import Delta
from whet.server.logprobs import token_logprobs
from whet.server.masks import MaskFiller, Masks
from whet.server.request import FinishReason, Request, Status, TokenLogprobs
from whet.server.runner import PromptRows, Runner, Work
from whet.server.sampler import UNUSABLE, Sampler
from whet.server.scheduler import Plan, Scheduler
from whet.server.speculative import Speculation, accepted

_LOG = logging.getLogger("whet")
_BAD_LOGITS = "the model returned NaN or infinite logits"


class Progress(NamedTuple):
    request: Request
    delta: Delta


class Stepper:
    """Run the requests of a scheduler on a model, whose memory must have been allocated.

    `clock` returns the time in seconds. The requests' arrival times are on the same clock.
    """

    def __init__(
        self,
        model: ServedModel,
        scheduler: Scheduler,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.scheduler, self.speculation = model, scheduler, speculation
        self.num_prompt_tokens = 0  # tokens of prompts that have been computed completely
        self.num_output_tokens = 0
        self._runner = Runner(scheduler.blocks, scheduler.max_batch_tokens)
        self._sampler = Sampler()
        self._masks = MaskFiller(model.vocab_size)
        self._clock = clock
        self._drafting_s = 0.0  # time spent on the drafts of the next step

    def step(self) -> list[Progress]:
        """Run one step, and return one entry for each request that got new tokens or ended.

        A request that fails ends with the finish reason "error", and its delta says why. If the model raises an
        exception, all requests of the step fail.
        """
        began = self._clock()
        plan = self.scheduler.schedule()
        progress = [self.ended(request) for request in plan.failed]
        if not plan.requests:
            return progress
        for request in plan.requests:
            if request.admitted_s is None:
                request.admitted_s = began
        try:
            self._put_beginnings(plan)
            with torch.inference_mode():
                work = self._runner.build(plan)
                masking = self._masks.begin(work.samples)
                try:
                    logits_RV = self.model.step(work.batch).cpu()  # does not copy logits that are on the CPU already
                finally:
                    masks = masking()  # even if the model raises: nothing else may touch the guides meanwhile
                chosen = self._choose(work, logits_RV, masks)
        except Exception as error:  # noqa: BLE001 - a model may raise anything; the engine goes on
            _LOG.exception("a step of %d requests failed", len(plan.requests))
            message = f"the step failed: {named_reason(error)}"
            return progress + [self.fail(request, message) for request in plan.requests]
        now = self._clock()
        new = self._update(plan, work, chosen, now)
        self.scheduler.cost.observe(plan.total_tokens, plan.prompt_tokens, (now - began) * 1e3)
        if self.speculation is not None:
            num_new = sum(len(one.delta.token_ids) for one in new)
            self._speculate(self.speculation, plan, num_new, began)
        return progress + new

    def abort(self, request: Request) -> Progress:
        """End a request that is no longer wanted. Its delta has the text that was held back."""
        text = request.rest_of_text() if not request.is_finished else ""
        self.scheduler.finish(request, "abort")
        progress = self.ended(request)
        progress.delta.text = text
        return progress

    def fail(self, request: Request, message: str) -> Progress:
        request.error = message
        self.scheduler.finish(request, "error")
        return self.ended(request)

    def ended(self, request: Request) -> Progress:
        """Return the last entry of a finished request."""
        return Progress(request, self._delta(request, [], "", self._clock()))

    def _put_beginnings(self, plan: Plan) -> None:
        """Let the requests that begin at a state, and are new or were preempted, go on from it."""
        for request in plan.requests:
            if request.beginning is not None and request.num_computed == request.num_before:
                memory_of(self.model).write_state(request.row, request.beginning.state)

    def _choose(self, work: Work, logits_RV: Tensor, masks: Masks | None) -> "_Chosen":
        for prompt in work.prompts:
            _add_prompt_logprobs(prompt, logits_RV[prompt.first : prompt.end])
        if work.prompts:
            logits_RV = logits_RV[work.sample_rows]
        return _Chosen(logits_RV, self._sampler.sample(logits_RV, work.samples, masks), masks)

    def _update(self, plan: Plan, work: Work, chosen: "_Chosen", now: float) -> list[Progress]:
        """Note what has been computed, give each request its new tokens, and finish requests that have ended."""
        snapshots = self.scheduler.snapshots
        for request, count in zip(plan.requests, plan.num_tokens, strict=True):
            request.num_computed += count
            if snapshots is not None:
                snapshots.take(request, min(request.num_computed, len(request.token_ids)))
            if request.on_state is not None and request.num_computed == request.num_prompt:
                self._give_state(request, request.on_state)
        ids, samples = chosen.ids.tolist(), work.samples
        progress, first = [], 0
        while first < len(samples):
            request, end = samples[first].request, first + 1
            try:
                tokens = ids[first:end]
                if request.drafts:
                    end += len(request.drafts)
                    tokens = self._accept(request, ids[first:end])
                progress.append(Progress(request, self._take(request, tokens, chosen, first, now)))
            except Exception as error:  # noqa: BLE001 - a failure in one request must not stop the others
                _LOG.exception("request %s failed", request.id)
                progress.append(self.fail(request, named_reason(error)))
            first = end
        if plan.prompt_tokens:
            for request in plan.requests:
                if not request.is_finished:
                    self.scheduler.blocks.publish(request)
        return progress

    def _give_state(self, request: Request, take: Callable[[LtmState], None]) -> None:
        """Give away what the model remembers of a prompt that it has just read, once."""
        request.on_state = None  # after a preemption, the prompt is read again
        try:
            take(memory_of(self.model).read_state(request.row, request.num_prompt))
        except Exception:  # noqa: BLE001 - a failure in one request must not stop the others
            _LOG.exception("the state of request %s could not be given away", request.id)

    def _accept(self, request: Request, ids: list[int]) -> list[int]:
        """Return the new tokens of a request that had drafts: the accepted ones and one more."""
        num_drafts = len(request.drafts)
        tokens = accepted(request, ids)
        if self.speculation is not None:
            self.speculation.count(num_drafts, len(tokens) - 1)
        request.num_computed -= len(ids) - len(tokens)  # later tokens overwrite the state of refused drafts
        request.drafts = []
        return tokens

    def _take(self, request: Request, tokens: list[int], chosen: "_Chosen", first: int, now: float) -> Delta:
        """Give a request its new tokens, up to the one that ends it. The first is from row `first` of the logits."""
        is_bad = tokens[-1] == UNUSABLE
        if is_bad:
            tokens = tokens[:-1]
        if request.max_len == request.num_prompt:  # max_tokens is 0: only the prompt was to be computed
            request.finish_reason, tokens, text = "length", [], ""
        else:
            num_taken, text = request.take(tokens)
            tokens = tokens[:num_taken]
        if is_bad and request.finish_reason is None:
            request.finish_reason, request.error = _end_of_bad(request, chosen, first + len(tokens))
            text += request.rest_of_text()
        else:
            self.scheduler.blocks.publish(request)
        self.num_output_tokens += len(tokens)
        if request.first_token_s is None:
            self.num_prompt_tokens += request.num_prompt
            request.first_token_s = now
        logprobs = None
        if request.params.logprobs is not None:
            rows_RV = chosen.logits[first : first + len(tokens)]
            if request.guide is not None and chosen.masks is not None:
                rows_RV = chosen.masks.applied(rows_RV, first)
            logprobs = token_logprobs(rows_RV, tokens, request.params.logprobs)
        if request.finish_reason is not None:
            self.scheduler.finish(request, request.finish_reason)
        return self._delta(request, tokens, text, now, logprobs)

    def _delta(
        self,
        request: Request,
        token_ids: list[int],
        text: str,
        now: float,
        logprobs: list[TokenLogprobs] | None = None,
    ) -> Delta:
        began, first_s, admitted_s = request.arrival_s, request.first_token_s, request.admitted_s
        is_over = request.status is Status.FINISHED
        delta = Delta(  # without names: for each token, they would cost half a microsecond
            request.id,
            token_ids,
            text,
            logprobs,
            None,
            request.finish_reason if is_over else None,
            request.error if is_over else None,
            request.num_prompt,
            request.num_cached,
            (now if admitted_s is None else admitted_s) - began,
            None if first_s is None else first_s - began,
            now - began,
        )
        if not request.has_reported:
            request.has_reported = True
            if not request.wants_prompt_logprobs:
                delta.prompt_logprobs = request.prompt_logprobs
        return delta

    def _speculate(self, speculation: Speculation, plan: Plan, num_tokens: int, began: float) -> None:
        """Report the gain of this step's drafts to the controller, and propose drafts for the next step."""
        now = self._clock()
        if not plan.prompt_tokens:
            had_drafts = plan.total_tokens > len(plan.requests)
            speculation.observe(len(plan.requests), had_drafts, num_tokens, now - began + self._drafting_s)
        try:
            with torch.inference_mode():
                speculation.propose(self.scheduler.running)
        except Exception:  # noqa: BLE001 - the outputs are the same without drafts
            _LOG.exception("drafting failed and is off from now on")
            self.speculation = None
            for request in self.scheduler.running:
                request.drafts = []
        self._drafting_s = self._clock() - now


class _Chosen(NamedTuple):
    """Hold the logits of the sampled rows [R, V], the tokens chosen from them [R], and the masks, if there were any."""

    logits: Tensor
    ids: NDArray[np.int64]
    masks: Masks | None


def _end_of_bad(request: Request, chosen: _Chosen, row: int) -> tuple[FinishReason, str | None]:
    """Return how a request ends whose last row chose no token: complete, or with an error."""
    if request.guide is not None and request.guide.error is not None:
        return "error", request.guide.error
    if chosen.masks is not None and chosen.masks.is_empty(row):
        return "stop", None
    return "error", _BAD_LOGITS


def _add_prompt_logprobs(prompt: PromptRows, logits_RV: Tensor) -> None:
    """Append the log-probabilities that a chunk gives for the prompt's next tokens. The last chunk completes them."""
    request = prompt.request
    token_ids = request.prompt_ids[prompt.position : prompt.position + len(logits_RV)]
    entries: list[TokenLogprobs] = token_logprobs(logits_RV, token_ids, request.params.prompt_logprobs or 0)
    if request.prompt_logprobs is not None:
        request.prompt_logprobs += entries
