"""Check the name of a device without importing torch."""

import re

from whet.errors import OptionError


def check_device_name(name: str, option: str = "--device") -> None:
    """Raise OptionError unless a name is cpu, cuda or cuda:NUMBER."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise OptionError(f"{option} is cpu, cuda or cuda:NUMBER; got {name!r}")
