"""How well the frozen decoder continues from soft tokens."""

import torch
import torch.nn.functional as F


def k_token_loss(decoder, prefix, target_ids, num_tokens):
    """Mean cross entropy of the first tokens of the target, each predicted from the prefix and the tokens before it."""
    embed = decoder.get_input_embeddings()
    loss = 0.0
    inputs = torch.cat([prefix, embed(target_ids[:, : num_tokens - 1])], dim=1)
    logits = decoder(inputs_embeds=inputs, use_cache=False).logits[:, -num_tokens:]
    loss = loss + num_tokens * F.cross_entropy(logits.flatten(0, 1), target_ids[:, :num_tokens].flatten())
    return loss / num_tokens
