"""Save a training's checkpoints while it goes on, and find the newest whole one after it was cut off.

The layout of a directory:

    run.lock                           the run that uses the directory: RunLock
    step-00001000/                     a checkpoint: it has this name when all of its files are on the disk
        model.safetensors              the model's tensors, under their names in its state_dict
        optimizer.safetensors          likewise for each part: the first word of a tensor's name in a TrainingState
        random.safetensors
        state.json                     the values: step, position in the data, settings, schedules
        manifest.json                  step, format, and the size and SHA-256 of each file above: Manifest
        complete                       the marker: the SHA-256 of manifest.json
        pinned                         only where the checkpoint was pinned; it is kept until it is unpinned
    step-00001000-2/                   the same step, saved again by a run that had gone back
    .step-00002000.partial-1a2b3c4d/   being written
    .step-00002000.partial-1a2b3c4d.lock   locked by the process that writes it
    .step-00000000.removed-1a2b3c4d/   being removed

A part whose tensors take more than `shard_bytes` is divided into model-00001-of-00003.safetensors and so on. A reader
goes by the manifest alone, so that several processes may each write a shard of a part later.

To save means: copy the tensors to host memory, which is all that the training waits for; write the files in a thread,
each with fsync; fsync the directory; rename it; fsync its parent. A process that is killed at any moment leaves the
older checkpoints and a partial directory, which the next save removes. Files are safetensors and JSON: nothing is ever
unpickled.
"""

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from whet.errors import CheckpointError, OptionError, OutputError, RanksError, named_reason
from whet.files import usable_directory
from whet.parallel.pieces import Piece
from whet.parallel.ranks import Ranks
from whet.trainer.checkpoints.encoding import json_text
from whet.trainer.checkpoints.host_copy import HostCopy
from whet.trainer.checkpoints.manifest import (
    PINNED,
    Damage,
    Manifest,
    SavedStep,
    read_manifest,
    read_manifests,
    sized_steps,
    step_of,
)
from whet.trainer.checkpoints.reading import read_state, verify
from whet.trainer.checkpoints.retention import superseded
from whet.trainer.checkpoints.state import TrainingState
from whet.trainer.checkpoints.writing import remove_checkpoint, remove_left_overs, synchronise, write_checkpoint

_SHARD_BYTES = 4 * 10**9
_LOG = logging.getLogger("whet")


@dataclass(frozen=True)
class Saving:
    """Say what a call of save did before it returned.

    Attributes:
        is_skipped: Whether nothing was saved, since the checkpoint of before was still being written.
        waited_s: Seconds for which the call waited for the checkpoint of before.
        copied_s: Seconds for which it copied the tensors.
        num_bytes: The bytes that were copied.
    """

    step: int
    is_skipped: bool = False
    waited_s: float = 0.0
    copied_s: float = 0.0
    num_bytes: int = 0


@dataclass(frozen=True)
class Written:
    """Describe a written checkpoint: its directory, the seconds of writing, and the bytes of the tensors' files."""

    path: Path
    step: int
    seconds: float
    num_bytes: int


@dataclass(frozen=True)
class Found:
    """Name the newest whole checkpoint.

    Attributes:
        path: Its directory.
        step: The step after which it was saved.
        skipped: Newer ones that are damaged, each with the reason.
    """

    path: Path
    step: int
    skipped: tuple[tuple[Path, str], ...] = ()


class Checkpoints:
    """Save checkpoints into a directory, and find and load them.

    It is a context manager, which waits at the end until all is written. One object serves one thread. The directory is
    made by the first save. RunLock keeps a second run out of it.

    Args:
        keep: How many of the newest are kept.
        keep_every: Checkpoints of steps that are multiples of it are kept for ever; None for no such step.
        when_busy: What a save does while the checkpoint of before is still being written: "wait" for it, or "skip".
        shard_bytes: The tensors of a part are divided into files of about this size at most.
        ranks: The processes that train together, each of which writes its part; all make the same calls.

    Attributes:
        last_written: The checkpoint that was written last; None before the first.

    Raises:
        OptionError: An option is out of its range.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        keep: int = 3,
        keep_every: int | None = None,
        when_busy: Literal["wait", "skip"] = "wait",
        shard_bytes: int = _SHARD_BYTES,
        ranks: Ranks | None = None,
    ) -> None:
        for name, value in (("keep", keep), ("keep_every", keep_every), ("shard_bytes", shard_bytes)):
            if value is not None and value < 1:
                raise OptionError(f"{name} must be 1 or more; got {value}")
        if when_busy not in ("wait", "skip"):
            raise OptionError(f"when_busy must be 'wait' or 'skip'; got {when_busy!r}")
        self.directory = Path(directory)
        self.last_written: Written | None = None
        self._keep, self._keep_every, self._when_busy = keep, keep_every, when_busy
        self._ranks = ranks or Ranks()
        if when_busy == "skip" and not self._ranks.is_alone:
            raise OptionError("several processes skip no checkpoint, since some might; leave when_busy out")
        self._copy = HostCopy(shard_bytes, "" if self._ranks.is_alone else f"-rank{self._ranks.rank:05d}")
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[Written] | None = None

    def reserve(self, state: TrainingState) -> None:
        """Get the memory that a save of such a state copies to. Without it, the first save takes longer.

        Raises:
            OptionError: A tensor cannot be saved.
            OutputError: There is not enough memory, or a save before failed.
        """
        self.wait()
        self._copy.reserve(state.tensors)

    def save(self, step: int, state: TrainingState, *, wait: bool = False) -> Saving:
        """Copy a state and write it in a thread. The state may change as soon as the call returns.

        Args:
            step: The step after which the state was taken.
            wait: Return when the checkpoint is on the disk, and skip nothing.

        Returns:
            What the call did, and for how long the training stood still.

        Raises:
            OptionError: The state holds something that cannot be saved.
            OutputError: The directory cannot be written, or the save before failed; this state is then not saved.
        """
        if not isinstance(step, int) or step < 0:
            raise OptionError(f"a checkpoint's step is a number from 0; got {step!r}")
        began = time.perf_counter()
        is_busy = self._pending is not None and not self._pending.done()
        if is_busy and self._when_busy == "skip" and not wait:
            return Saving(step, is_skipped=True)
        self.wait()
        waited_s = time.perf_counter() - began if is_busy else 0.0
        values = json_text(state.values)
        if self._writer is None:
            usable_directory(self.directory)
        began = time.perf_counter()
        self._copy.take(state.tensors)
        copied_s = time.perf_counter() - began
        if self._writer is None:  # the interpreter ends after the last checkpoint is written
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="whet-checkpoint")
        self._pending = self._writer.submit(self._write, step, values, state.pieces)
        if wait:
            self.wait()
        return Saving(step, waited_s=waited_s, copied_s=copied_s, num_bytes=self._copy.num_bytes)

    def _write(self, step: int, values: bytes, pieces: Mapping[str, Piece]) -> Written:
        """Write what was copied, and remove what is kept no longer. This runs in the thread."""
        began = time.perf_counter()
        if self._ranks.is_first:
            remove_left_overs(self.directory)
        path = write_checkpoint(self.directory, step, self._copy, json.loads(values), pieces, self._ranks)
        written = Written(path, step, time.perf_counter() - began, self._copy.num_bytes)
        self.last_written = written
        if self._ranks.is_first:
            self._remove_old()
        return written

    def _remove_old(self) -> None:
        for old in superseded(sized_steps(self.directory), keep=self._keep, keep_every=self._keep_every):
            try:
                remove_checkpoint(old)
            except OSError as error:  # another process may have removed it
                _LOG.warning("%s cannot be removed, and stays: %s", old, error.strerror or error)

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk.

        Raises:
            OutputError: It could not be written. The older ones are untouched.
        """
        pending = self._pending
        if pending is None:
            return
        try:
            pending.result()
        except (OutputError, RanksError):
            raise
        except Exception as error:
            raise OutputError(
                f"a checkpoint could not be written to {self.directory}: {named_reason(error)}; the checkpoints of "
                "before are untouched"
            ) from error
        finally:
            if pending.done():  # after Ctrl-C it is not, and the copy that it writes must not change
                self._pending = None

    def close(self) -> None:
        """Wait until the last checkpoint is on the disk, and end the thread.

        Raises:
            OutputError: It could not be written. The older ones are untouched.
        """
        try:
            self.wait()
        finally:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except OutputError as failed:  # the block's own error is the one to show
            _LOG.warning("%s", failed)

    def newest(self) -> Found | None:
        """Return the newest checkpoint that is whole, judged by its marker, sizes and checksums.

        Returns:
            The checkpoint, with the damaged ones that are newer; None where the directory has no checkpoint.

        Raises:
            CheckpointError: None of the checkpoints is whole, or the newest is of a newer format.
            OutputError: The directory cannot be read.
        """
        skipped: list[tuple[Path, str]] = []
        manifests: list[tuple[Manifest, Path]] = []
        for path, manifest in read_manifests(self.directory):
            if isinstance(manifest, Manifest):
                manifests.append((manifest, path))
            elif isinstance(manifest, Damage):
                skipped.append((path, str(manifest)))
            else:
                raise manifest
        for manifest, path in sorted(manifests, key=lambda one: one[0].number, reverse=True):
            try:
                verify(path)
            except Damage as damage:
                skipped.append((path, str(damage)))
            else:
                newer = [(one, why) for one, why in skipped if one != path and step_of(one) >= manifest.step]
                return Found(path, manifest.step, tuple(sorted(newer)))
        if skipped:
            told = "; ".join(f"{path.name}: {why}" for path, why in sorted(skipped))
            raise CheckpointError(
                f"none of the checkpoints in {self.directory} is whole ({told}); move them away to begin anew"
            )
        return None

    def all(self) -> list[SavedStep]:
        """Return the checkpoints whose files are all there with the right sizes, the newest first. No content is read.

        Raises:
            OutputError: The directory cannot be read.
        """
        return sized_steps(self.directory)

    def load(self, path: Path | str) -> TrainingState:
        """Return what a checkpoint holds, after its checksums were compared.

        The tensors are memory-mapped: they are read from the disk when they are used. They stay valid when the
        checkpoint is removed.

        Args:
            path: The checkpoint's directory, in this directory or elsewhere.

        Raises:
            CheckpointError: It is damaged, or of a newer format.
        """
        path = Path(path)
        try:
            return read_state(path, verify(path))
        except Damage as damage:
            raise CheckpointError(f"{path} is not a whole checkpoint: {damage}; load another one") from damage

    def pin(self, path: Path | str) -> None:
        """Keep a checkpoint until it is unpinned, in later runs too.

        Raises:
            CheckpointError: It is not a checkpoint, or cannot be marked.
        """
        path = Path(path)
        try:
            read_manifest(path)
            (path / PINNED).touch()
            synchronise(path)
        except Damage as damage:
            raise CheckpointError(f"{path} is not a whole checkpoint: {damage}; pin another one") from damage
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be pinned: {error.strerror or error}; make its directory writable"
            ) from error

    def unpin(self, path: Path | str) -> None:
        """Let a checkpoint be removed by a later save, where it is not kept for another reason.

        Raises:
            CheckpointError: The mark cannot be removed.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                (Path(path) / PINNED).unlink()
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be unpinned: {error.strerror or error}; make its directory writable"
            ) from error
