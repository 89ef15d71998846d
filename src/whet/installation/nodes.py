"""Say whether addresses at which processes would meet can be reached from here, and whether this machine's are free."""

import socket
from collections.abc import Sequence
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict

from whet.errors import OptionError, reason

DEFAULT_PORT = 29500
"""The port of torchrun's --master-port."""
_TIMEOUT_S = 3.0


class NodeAddress(BaseModel):
    """Describe what was found at an address.

    Attributes:
        state: "free": the port of this machine can be used; "in use": another program of this machine has it;
            "answers": something listens on another machine; "reachable": that machine refuses, since nothing listens
            there yet; "silent": nothing comes back; "unknown": the host has no address.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    port: int
    state: Literal["free", "in use", "answers", "reachable", "silent", "unknown"]
    told: str

    @property
    def is_fine(self) -> bool:
        """Return whether processes could meet there."""
        return self.state in ("free", "answers", "reachable")


def nodes(addresses: str) -> list[NodeAddress]:
    """Look at each address of a list such as "node1:29500,node2"; the port is torchrun's where there is none.

    Raises:
        OptionError: An address cannot be understood.
    """
    return [_looked_at(*_parsed(one.strip())) for one in addresses.split(",")]


def text(found: Sequence[NodeAddress]) -> str:
    """Return what was found as a page of text."""
    width = max(len(f"{one.host}:{one.port}") for one in found)
    faults = [one for one in found if not one.is_fine]
    outcome = "all addresses can be used" if not faults else f"{len(faults)} of {len(found)} addresses cannot be used"
    rows = [f"  {f'{one.host}:{one.port}':<{width}}  {one.state}: {one.told}" for one in found]
    return "\n".join([f"whet doctor: {outcome}.", "", "addresses", *rows])


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    if not host or (port and not (port.isdecimal() and 0 < int(port) <= 65535)):
        raise OptionError(f"--nodes takes addresses such as node1:29500,node2; got {address!r}")
    return host, int(port or DEFAULT_PORT)


def _looked_at(host: str, port: int) -> NodeAddress:
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        told = f"{reason(error)}; name it in DNS or /etc/hosts, or give its address"
        return NodeAddress(host=host, port=port, state="unknown", told=told)
    own = {one.address for all_of in psutil.net_if_addrs().values() for one in all_of}
    state, told = _own(address, port) if address in own else _other(address, port)
    return NodeAddress(host=host, port=port, state=state, told=told)


def _own(address: str, port: int) -> tuple[Literal["free", "in use"], str]:
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torchrun's store does
        try:
            bound.bind((address, port))
        except OSError as error:
            return "in use", f"{reason(error)}; choose another one with torchrun --master-port"
    return "free", "this machine, and torchrun can meet there"


def _other(address: str, port: int) -> tuple[Literal["answers", "reachable", "silent"], str]:
    try:
        socket.create_connection((address, port), timeout=_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return "reachable", f"{address} refuses, since nothing listens there yet"
    except OSError as error:
        told = f"{reason(error)} from {address} within {_TIMEOUT_S:g} s; see its firewall, and whether it is on"
        return "silent", told
    return "answers", f"something listens at {address}"
