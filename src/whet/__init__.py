"""Make PyTorch models fast on the machine at hand, and prove it.

`import whet` does nothing: it loads no torch, sets no flag and queries no device. The public names are declared in
`__init__.pyi`, beside this file, and load when they are first used.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)
