"""The machine that an audit's report gives advice for."""

import torch

from whet.auditor.report import MachineFacts
from whet.machine.description import describe


def machine_facts() -> MachineFacts:
    """Cores and memory that this process may use, and the GPUs it sees."""
    machine = describe()
    if not machine.has_cuda:
        return MachineFacts(machine.cores, machine.memory_bytes)
    properties = torch.cuda.get_device_properties(0)
    return MachineFacts(
        machine.cores, machine.memory_bytes, properties.name, properties.total_memory, torch.cuda.device_count()
    )
