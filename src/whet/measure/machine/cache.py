"""Find whet's cache directory, that of PyTorch's compiler, and the sizes of the processor's caches."""

import getpass
import os
import re
from pathlib import Path

import platformdirs

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def cache_dir() -> Path:
    """Return WHET_CACHE if it is set, else the user's cache directory. The directory may not exist yet."""
    return Path(os.environ.get("WHET_CACHE") or platformdirs.user_cache_dir("whet"))


def compiler_directory(temporary: Path) -> Path:
    """Return the directory of PyTorch's compiler below a temporary directory. Asking PyTorch for it takes seconds."""
    try:
        user = re.sub(r"[\\/:*?\"<>|]", "_", getpass.getuser())
    except (OSError, KeyError):  # a user id without a name, as in many containers
        user = f"uid_{os.getuid()}"
    return temporary / f"torchinductor_{user}"


def last_level_bytes(directory: Path = _CACHES) -> int:
    """Return the bytes of the first core's largest cache; 32 MiB where the system does not say."""
    sizes = []
    for path in directory.glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        digits, unit = (text[:-1], text[-1]) if text and text[-1] in _UNITS else (text, "")
        if digits.isdecimal():
            sizes.append(int(digits) * _UNITS.get(unit, 1))
    return max(sizes, default=32 * 2**20)
