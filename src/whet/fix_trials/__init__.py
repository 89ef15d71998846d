"""What an audit's fixes are worth on this machine: a training script with each, in a copy, in pairs of processes."""

from whet.fix_trials.plan import Impact, Stage, measure_impact

__all__ = ["Impact", "Stage", "measure_impact"]
