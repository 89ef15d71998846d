"""Describe this computer, and measure how fast it can be at best."""

from whet.measure.machine.description import Machine, describe
from whet.measure.machine.library_versions import versions
from whet.measure.machine.limits import Limits, known_limits, load_limits, measure_limits
from whet.measure.machine.power import Energy, EnergyMeter
from whet.measure.machine.topology import Gpu, Link, Node, Topology, find_topology

__all__ = [
    "Energy", "EnergyMeter", "Gpu", "Limits", "Link", "Machine", "Node", "Topology", "describe", "find_topology",
    "known_limits", "load_limits", "measure_limits", "versions",
]  # fmt: skip
