"""Run functions in several processes at the same time, which find in their environment where they meet."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from whet.measure.isolate import RANK, RENDEZVOUS, WORLD_SIZE, Child, Job, Outcome, run_job

MEETING = "meeting"  # the file at which the processes of a group meet

Start = Callable[[str, Path, Mapping[str, str]], Child | None]
"""Start a process from a function's address, a directory and more variables, or return None where that fails."""


def run_together(
    jobs: Sequence[Job],
    *,
    time_limit_s: float,
    memory_limit_bytes: int | None = None,
    starts: Sequence[Start] = (),
) -> list[Outcome]:
    """Call functions in processes of their own at the same time; the first failure ends all of them.

    Each process finds in its environment where to meet the others: WHET_RANK, WHET_WORLD_SIZE and WHET_RENDEZVOUS, the
    address of a file that `torch.distributed.init_process_group(init_method=...)` takes.

    Args:
        jobs: What each process does, by rank.
        memory_limit_bytes: Resident memory of each process beyond which it is ended.
        starts: What starts each process, by rank, as ForkServers do; fresh interpreters are started without them.

    Returns:
        What came of each job. A process that was ended since another one failed has FailureKind.PEER.
    """
    failed = threading.Event()
    outcomes: dict[int, Outcome] = {}
    errors_met: list[BaseException] = []
    meeting = jobs[0].directory.absolute() / MEETING
    meeting.unlink(missing_ok=True)

    def run(rank: int) -> None:
        place = {RANK: str(rank), WORLD_SIZE: str(len(jobs)), RENDEZVOUS: f"file://{meeting}"}
        job = replace(jobs[rank], environment={**jobs[rank].environment, **place})
        try:
            start = partial(_started_by, starts[rank], job.environment) if starts else None
            outcomes[rank] = run_job(job, time_limit_s, memory_limit_bytes, start=start, failed=failed)
        except BaseException as error:  # noqa: BLE001 - it is raised again once all have ended
            errors_met.append(error)
        if rank not in outcomes or outcomes[rank].failure is not None:
            failed.set()

    others = [threading.Thread(target=run, args=(rank,)) for rank in range(1, len(jobs))]
    try:
        for other in others:
            other.start()
        run(0)  # in this thread, so that Ctrl-C ends it
    except BaseException:
        failed.set()
        raise
    finally:
        for other in others:
            if other.ident is not None:
                other.join()
    if errors_met:
        raise errors_met[0]
    return [outcomes[rank] for rank in range(len(jobs))]


def _started_by(start: Start, environment: Mapping[str, str], address: str, directory: Path) -> Child | None:
    return start(address, directory, environment)
