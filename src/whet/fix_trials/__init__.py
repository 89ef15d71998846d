"""What an audit's fixes are worth on this machine: a training script with each, in a copy, in pairs of processes."""
