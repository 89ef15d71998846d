"""The one vocabulary of bounds: what it says in reports, and that it always helps."""

from whet.profiling.bounds import ADVICE, ROOFLINE, Bound


def test_names_in_reports_stay_as_they_were_published() -> None:
    assert [str(bound) for bound in ROOFLINE] == ["compute-bound", "bandwidth-bound", "overhead-bound"]
    of_steps = {"input-bound", "compute-bound", "sync-bound", "loop-bound", "memory-growing", "not enough steps"}
    of_traces = {
        *("GPU-bound", "launch-bound", "input-bound", "communication-bound", "copy-bound", "host-bound", "stalled"),
        *("CPU-bound", "not known"),
    }
    of_blocks = {"compute-bound", "overhead-bound", "waiting", "one core busy", "memory-growing", "not known"}
    assert of_steps | of_traces | of_blocks | {"bandwidth-bound"} == {str(bound) for bound in Bound}


def test_every_bound_that_is_known_comes_with_advice() -> None:
    assert set(Bound) - set(ADVICE) == {Bound.UNKNOWN}
