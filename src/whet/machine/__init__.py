"""Describe this computer, and measure how fast it can be at best."""

from whet.machine.description import Machine, describe
from whet.machine.library_versions import versions
from whet.machine.limits import Limits, known_limits, load_limits, measure_limits
from whet.machine.power import Energy, EnergyMeter
from whet.machine.topology import Gpu, Link, Node, Topology, find_topology

__all__ = [
    "Energy", "EnergyMeter", "Gpu", "Limits", "Link", "Machine", "Node", "Topology", "describe", "find_topology",
    "known_limits", "load_limits", "measure_limits", "versions",
]  # fmt: skip
