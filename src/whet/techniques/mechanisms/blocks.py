"""Find the layer of a model before its loss, and name the group of techniques that choose what forward keeps."""

from torch import nn

ACTIVATIONS = "activations"  # the group of techniques that choose what is kept from forward to backward


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
