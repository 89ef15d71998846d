"""Find the parts of a model that techniques for training work on: repeated blocks, and the layer before the loss."""

from torch import nn

ACTIVATIONS = "activations"  # the group of techniques that choose what is kept from forward to backward


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


def head_of(model: nn.Module, *, least_outputs: int = 1024) -> nn.Linear | None:
    """Return the linear layer that makes logits over a vocabulary; None where there is none.

    A model of transformers names it. Otherwise it is the layer with the most outputs, if it comes last.
    """
    named = getattr(model, "get_output_embeddings", None)
    head = named() if callable(named) else None
    if head is None:
        layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
        head = layers[-1] if layers and layers[-1].out_features == max(x.out_features for x in layers) else None
    return head if isinstance(head, nn.Linear) and head.out_features >= least_outputs else None
