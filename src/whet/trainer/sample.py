"""Let a model go on with a text while it trains."""

import torch
from torch import Tensor, nn

from whet.trainer.model import TrainedModel


@torch.no_grad()
def go_on(
    model: TrainedModel, module: nn.Module, ids: list[int], *, num_tokens: int, temperature: float, seed: int
) -> list[int]:
    """Return the tokens with which a model goes on.

    Every token computes the whole text again, or as much of its end as the model takes. A server does better; this is
    for a look at a model that trains.

    Args:
        ids: The text's tokens, at least one.
        temperature: What logits are divided by; 0 takes the likeliest token.
        seed: Decides what is drawn. The generators of the training go on where they were.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(module.parameters()).device
    found = list(ids)
    for _ in range(num_tokens):
        seen = found if model.max_tokens is None else found[-model.max_tokens :]
        logits_V: Tensor = model.logits(module, torch.tensor([seen], device=device), None, None)[0, -1].float().cpu()
        if temperature == 0:
            found.append(int(logits_V.argmax()))
        else:
            chances_V = torch.softmax(logits_V / temperature, -1)
            found.append(int(torch.multinomial(chances_V, 1, generator=generator)))
    return found[len(ids) :]
