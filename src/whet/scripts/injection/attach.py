"""Find the loop of a script from inside its process, apply a recipe, record the steps, and end it after enough.

`inject/sitecustomize.py` calls `begin` once torch is loaded, before the script goes on.
"""

import atexit
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from whet.core.recipe import Recipe
from whet.core.workload.training import seed_everything
from whet.errors import WhetError
from whet.measure.device import device_type_of
from whet.measure.machine import describe
from whet.measure.memory import TakenMemory, cuda_peak_bytes, peak_rss_bytes
from whet.profiling.step.patching import Patches
from whet.profiling.step.watch import watch_everything
from whet.scripts.injection.agreed_end import AgreedEnd
from whet.scripts.injection.applying import applicable, apply, shift_seeds
from whet.scripts.injection.closures import FirstCall, closure_of, with_closure
from whet.scripts.injection.file_guard import FileGuard
from whet.scripts.injection.first_attention import FirstAttention
from whet.scripts.injection.first_steps import FirstSteps
from whet.scripts.injection.loop_finder import ONE_LOOP, FoundLoop, LoopFinder
from whet.scripts.injection.losses import BackwardLosses
from whet.scripts.injection.messages import GRADIENTS, TRAINER, ScriptRecord, ScriptRequest
from whet.scripts.injection.rank_place import RankPlace
from whet.scripts.injection.step_times import StepTimes
from whet.techniques.costs.memory import step_memory
from whet.techniques.mechanisms.later_notes import all_notes, tell_later
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import ProcessGuard, is_sharded
from whet.techniques.proof.sensitivity import move
from whet.techniques.training import TRAINING_TABLE


class ScriptStopped(SystemExit):
    """End the script from inside, as sys.exit does."""


def begin(directory: str) -> None:
    """Begin in this process, as the request in a directory asks."""
    request = ScriptRequest.read(Path(directory))
    ScriptLoop(RankPlace.of_environment(Path(directory), is_launched=request.is_launched), request)


class ScriptLoop:
    """Handle the training loop of this process, whose place holds its messages."""

    def __init__(self, place: RankPlace, request: ScriptRequest) -> None:
        self._place, self._directory = place, place.directory
        self._request = request
        self._patches = Patches()
        self._losses = BackwardLosses()
        self._heard: list[Tensor | None] = []
        self._closure_loss: Tensor | None = None  # of the step's first call of its closure
        self._rates: list[list[float]] = []
        self._record = ScriptRecord(seconds=[], losses=[])
        self._first: FirstSteps | None = None
        self._attention = FirstAttention()
        self._changed: Parts | None = None
        self._guard: ProcessGuard | None = None  # for processes that come after the recipe
        self._times: StepTimes | None = None
        self._agreed = AgreedEnd(place)
        self._last_ns = 0
        self._has_ended = self._has_met_another = False
        self._code = 0  # with which this process ends once it has refused
        self._watching = contextlib.ExitStack()
        self._taken = TakenMemory() if request.is_bounded else None
        if request.is_bounded:
            self._prepare_bounded()
        self._finder = LoopFinder(self._found, self.refuse, self._losses.paused, may_be_several=request.is_launched)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def refuse(self, why: str) -> NoReturn:
        """End the process with a reason, before anything else is trained."""
        if not self._has_ended:
            self._has_ended = True
            if not self._request.is_bounded and not self._request.is_launched:
                sys.stderr.write(f"error: {why}\n")
            self._code = self._place.refuse(why)
        raise ScriptStopped(self._code)

    def _say(self, text: str) -> None:
        """Write a line of whet's own beside the script's output; of several processes, the first one does."""
        if self._place.rank == 0:
            sys.stderr.write(f"whet: {text}\n")

    def _prepare_bounded(self) -> None:
        request = self._request
        seed_everything(request.seed)
        if request.shift:
            shift_seeds(self._patches, request.shift)
        if request.num_threads:
            torch.set_num_threads(request.num_threads)
        if request.writable:
            FileGuard(request.writable, request.protected, self.refuse).begin(self._patches)
        self._losses.listen(self._patches)
        atexit.register(self._end_early)
        if request.is_watched:
            watch = self._watching.enter_context(watch_everything(with_memory=False))
            self._report = watch.report
            self._attention.listen(self._patches)

    def _found(self, found: FoundLoop) -> None:
        """Apply the recipe to the loop."""
        parts, steps = found.parts, self._request.steps
        self._claim()
        if self._request.is_bounded:
            self._check_provable(found)
        try:
            machine = describe()
            if self._request.is_bounded and not steps:
                applies, refused = applicable(found, machine)
                self._record.applicable, self._record.refused = applies, refused
            if self._request.is_proof:
                self._first = FirstSteps(found)
            if self._request.moved:
                generator = torch.Generator().manual_seed(self._request.move)
                move([p for _, p in found.trained], self._request.moved, generator)
            self._record.model, self._record.optimizer = type(parts.model).__name__, type(parts.optimizer).__name__
            self._record.num_parameters = sum(p.numel() for _, p in found.trained)
            self._changed = changed = apply(found, steps, machine)
            self._guard = ProcessGuard(changed.model, {s.technique: TRAINING_TABLE[s.technique].refuses for s in steps})
        except WhetError as error:
            self.refuse(str(error))
        if not self._request.is_bounded:
            recipe = Recipe(kind="training", steps=steps)
            self._say(f"{recipe} applied to {type(parts.model).__name__}{self._place.in_processes}")
            tell_later(changed, self._say)
            if self._request.fingerprint not in ("", machine.fingerprint):
                self._say("the recipe was proved on another machine: its speed here is not known")

    def _claim(self) -> None:
        """Note that this process trains. In a bounded run, refuse if another one does already."""
        try:
            with (self._directory / TRAINER).open("x", encoding="ascii") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            if self._request.is_bounded:
                self.refuse("the script trains in several processes; start it so that one process trains")

    def _check_provable(self, found: FoundLoop) -> None:
        """Refuse to tune where it cannot be proved that the training stays the same."""
        if self._place.num_machines > 1:
            self.refuse(
                "the script trains on several machines, and whet tune sees the processes of one; tune it on one "
                "machine, then start it on all with whet run"
            )
        if is_sharded(found.parts.model):
            self.refuse(
                "fully_shard divides the parameters among processes, and whet tune does not compare updates of shards; "
                "tune the script without fully_shard, in one process or with DistributedDataParallel, then start it "
                "with whet run"
            )

    def _is_loop(self, optimizer: Optimizer) -> bool:
        return self._first is None or not self._first.is_mine(optimizer)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self._has_ended or not self._is_loop(optimizer):
            return None
        self._closure_loss = None
        closure = closure_of(args[1:], kwargs)
        if closure is None:
            self._before_update(optimizer)
            return None

        def computed() -> None:
            self._closure_loss = self._losses.take()  # later calls of the closure in this step are no further steps
            self._before_update(optimizer)

        return with_closure(args, kwargs, FirstCall(closure, computed))

    def _before_update(self, optimizer: Optimizer) -> None:
        """Note what the optimiser is about to do: the gradients are computed, and the parameters are the old ones."""
        self._finder.before_step(optimizer)
        found = self._finder.found
        assert found is not None and self._guard is not None
        try:
            self._guard(optimizer)
        except WhetError as error:
            self.refuse(str(error))
        if optimizer is not found.parts.optimizer:
            self._meet_another(type(optimizer).__name__)
            return
        if self._first is not None:
            self._first.before_step(optimizer)
        if self._request.is_bounded:
            self._rates.append([float(group["lr"]) for group in optimizer.param_groups])

    def _meet_another(self, kind: str) -> None:
        """Refuse a second optimiser in a bounded run. A long training goes on, and it is said that this one is not."""
        if self._request.is_bounded:
            self.refuse(f"the script has several optimisers (another {kind} steps). {ONE_LOOP}")
        if not self._has_met_another:
            self._has_met_another = True
            self._say(f"another optimiser ({kind}) steps too; the recipe is not applied to what it trains")

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._has_ended or not self._request.is_bounded or not self._is_loop(optimizer):
            return
        now = time.perf_counter_ns()
        loss = self._losses.take()
        loss = loss if self._closure_loss is None else self._closure_loss
        self._heard.append(None if loss is None else loss.clone())
        if self._first is not None:
            self._first.after_step()
        if self._times is None:
            number = self._request.num_steps - (1 if self._place.world_size == 1 else 2)  # several end a step later
            if self._request.is_watched:
                self._record.within_documents = self._attention.end()
            self._times = StepTimes(number, self._request.limit_s, enough_s=self._request.enough_s)
        else:
            has_enough = self._times.add((now - self._last_ns) / 1e9)
            if self._agreed.is_reached(len(self._heard), has_enough=has_enough):
                self._end()
                raise ScriptStopped(0)
        self._last_ns = time.perf_counter_ns()

    def _end_early(self) -> None:
        """Record the steps of a script that ended by itself."""
        trains = self._times is not None and (self._directory / TRAINER).read_text(encoding="ascii") == str(os.getpid())
        if not self._has_ended and trains:
            assert self._times is not None
            self._times.end_block()
            self._end()

    def _end(self) -> None:
        self._has_ended = True
        assert self._times is not None
        record = self._record
        record.seconds, record.blocks = self._times.seconds, self._times.blocks_to_json()
        record.notes = () if self._changed is None else all_notes(self._changed)
        record.losses = [None if loss is None else float(loss) for loss in self._heard]
        record.learning_rates = self._rates
        record.world_size, record.num_threads = self._place.world_size, torch.get_num_threads()
        record.peak_bytes = peak_rss_bytes()
        if self._changed is not None and self._taken is not None:
            model, optimizer = self._changed.model, self._changed.optimizer
            if device_type_of(model.parameters()) == "cuda":
                record.cuda_peak_bytes = cuda_peak_bytes()
            peak_bytes = self._taken.peak_bytes() if record.cuda_peak_bytes is None else record.cuda_peak_bytes
            record.memory = step_memory(model, optimizer, peak_bytes)
        if self._request.is_watched:
            self._watching.close()
            record.shares = {phase.name: phase.share for phase in self._report().phases if phase.share is not None}
        if self._first is not None:
            record.updates = self._first.updates
            self._first.write(self._directory / GRADIENTS)
        record.write(self._directory)
