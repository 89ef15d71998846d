"""How well the frozen decoder continues from soft tokens."""

import torch
import torch.nn.functional as F


def k_token_loss(decoder, prefix, target_ids, num_tokens):
    """Mean cross entropy of the first tokens of the target, each predicted from the prefix and the tokens before it."""
    embed = decoder.get_input_embeddings()
    loss = 0.0
    for t in range(num_tokens):
        inputs = torch.cat([prefix, embed(target_ids[:, :t])], dim=1)
        logits = decoder(inputs_embeds=inputs, use_cache=False).logits[:, -1]
        loss = loss + F.cross_entropy(logits, target_ids[:, t])
    return loss / num_tokens
