"""The table of rules, while they are being written: every file of the folder."""

import importlib
import pkgutil
from types import ModuleType

_MODULES: list[ModuleType] = []
for _found in pkgutil.iter_modules(__path__):
    try:
        _module = importlib.import_module(f"{__name__}.{_found.name}")
        _MODULES.append(_module) if hasattr(_module, "CODE") and hasattr(_module, "check") else None
    except Exception as _error:  # noqa: BLE001
        import sys

        print("RULE DOES NOT LOAD", _found.name, _error, file=sys.stderr)  # noqa: T201
_FAMILIES = ["SYN", "MOV", "DAT", "PRE", "CMP", "MEM", "INF", "DST"]
_MODULES.sort(key=lambda module: (_FAMILIES.index(module.CODE[:3]), module.CODE))
RULES: dict[str, ModuleType] = {module.CODE: module for module in _MODULES}
