"""whet makes PyTorch models fast on the machine at hand, and proves it.

`import whet` does nothing: no torch, no flag, no device query. The public names stand in `__init__.pyi`, beside this
file, and load when first used.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)
