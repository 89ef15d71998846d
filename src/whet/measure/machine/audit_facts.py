"""Describe the machine that an audit's report gives advice for."""

from whet.measure.machine.description import describe
from whet_audit.report import MachineFacts


def machine_facts() -> MachineFacts:
    """Cores and memory that this process may use, and the GPUs it sees."""
    machine = describe()
    if not machine.gpus:
        return MachineFacts(machine.cores, machine.memory_bytes)
    first = min(machine.gpus, key=lambda gpu: gpu.index)
    return MachineFacts(machine.cores, machine.memory_bytes, first.name, first.memory_bytes, len(machine.gpus))
