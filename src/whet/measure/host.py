"""Tell computers apart, and processes that live from those that have ended."""

import os
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

_SAME_S = 10.0  # by which clocks that were set may move the time at which a process seems to have begun
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@cache
def host_id() -> str:
    """Return what tells this computer from others: its name and, on Linux, the kernel's id of this boot.

    Two containers of one computer have two names, and so two ids: neither sees the other's processes.
    """
    try:
        return f"{socket.gethostname()} {_BOOT.read_text().strip()}"
    except OSError:
        return socket.gethostname()


@cache
def computer_id() -> str:
    """Return the same for all containers and nodes of one computer, whose cores they share."""
    return host_id().rpartition(" ")[2]


def this_process() -> dict[str, Any]:
    """Return by what others on this computer find this process."""
    return _process(os.getpid())


@cache
def _process(pid: int) -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": pid, "began": psutil.Process(pid).create_time()}


def is_here(told: Mapping[str, Any]) -> bool:
    """Return whether a process that said so, as this_process does, is or was on this computer."""
    return bool(told.get("host") == socket.gethostname())


def lives(told: Mapping[str, Any]) -> bool:
    """Return whether a process that said so, as this_process does, is on this computer, and lives."""
    if not is_here(told):
        return False
    try:
        process = psutil.Process(told["pid"])
        is_same = abs(process.create_time() - told.get("began", process.create_time())) < _SAME_S
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
