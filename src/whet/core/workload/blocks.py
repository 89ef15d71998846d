"""Find the blocks that a model repeats: what is recomputed, sharded or compared one by one."""

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's repeated blocks in order: the layers of a transformer, the blocks of a residual network.

    They are the children of lists and sequences that have a sibling of their own class, with parameters and with
    modules of their own, and that lie in no other such block.
    """
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside:
            continue
        for block in _repeated_in(module):
            found.append(block)
            inside.update(id(part) for part in block.modules())
    return found


def _repeated_in(module: nn.Module) -> list[nn.Module]:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return []
    blocks = [
        child
        for child in module.children()
        if next(child.children(), None) and next(child.parameters(), None) is not None
    ]
    kinds = [type(block) for block in blocks]
    return [block for block in blocks if kinds.count(type(block)) > 1]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformer, in order, also where there is only one."""
    found = repeated_blocks(model)
    if not found:
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == 1)
        found = next(([one[0]] for one in lists if next(one[0].children(), None) is not None), [])
    return found
