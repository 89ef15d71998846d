"""Train an encoder that compresses a passage into eight soft tokens, from which a frozen decoder goes on writing.

python train_tuned.py --steps 40 --recipe trained/recipe.toml

This is train.py over a loader, with a recipe of `whet tune` applied. The lines that name whet, model, batches
or recipe are new.
"""

import argparse
import random

import torch
from data import encode_batch, load_examples
from models import PromptEncoder, load_decoder
from transformers import DynamicCache
from workload import Batches, Continuation

import whet


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--grad_accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--num_examples", type=int, default=2000)
    parser.add_argument("--recipe", default="", help="what whet tune wrote; without it, nothing is changed")
    parser.add_argument("--context_tokens", type=int, default=96)
    parser.add_argument("--target_tokens", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--eval_every", type=int, default=1000)
    parser.add_argument("--print_every", type=int, default=10)
    parser.add_argument("--num_held_out", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def generate(decoder, prefix, num_tokens):
    """Token ids that the decoder writes after the prefix, the likeliest each time."""
    embed = decoder.get_input_embeddings()
    inputs, written = prefix, []
    for _ in range(num_tokens):
        cache = DynamicCache()
        logits = decoder(inputs_embeds=inputs, past_key_values=cache).logits
        token = logits[:, -1].argmax(dim=-1)
        written.append(token.item())
        inputs = torch.cat([inputs, embed(token)[:, None]], dim=1)
    return written


def evaluate(encoder, decoder, tokenizer, examples, args, device):
    """Share of the target's tokens that the decoder writes by itself."""
    right = 0
    for context, target in examples:
        context_ids = encode_batch(tokenizer, [context], args.context_tokens).to(device)
        target_ids = encode_batch(tokenizer, [target], args.target_tokens)[0].tolist()
        prefix = encoder(decoder.get_input_embeddings()(context_ids))
        written = generate(decoder, prefix, args.target_tokens)
        right += sum(a == b for a, b in zip(written, target_ids))
    return right / (len(examples) * args.target_tokens)


def main():
    args = parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoder, tokenizer = load_decoder(device)
    encoder = PromptEncoder(decoder.config.hidden_size).to(device)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=args.lr)
    examples = load_examples(args.num_examples)
    held_out = load_examples(args.num_held_out, held_out=True)
    model, batches = Continuation(encoder, decoder), Batches(tokenizer, examples, args.batch_size)
    if args.recipe:
        model, optimizer, batches = whet.prepare(model, optimizer, batches, recipe=args.recipe)

    step, num_micro, total = 0, 0, 0.0
    while step < args.steps:
        for context_ids, target_ids in batches:
            loss = model(context_ids.to(device), target_ids.to(device)) / args.grad_accum
            loss.backward()
            total += loss.item()
            num_micro += 1
            if num_micro % args.grad_accum:
                continue
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            step += 1
            if step % args.print_every == 0:
                print(f"step {step}: loss {total / args.print_every:.4f}")
                total = 0.0
            if step % args.eval_every == 0:
                accuracy = evaluate(encoder, decoder, tokenizer, held_out, args, device)
                print(f"step {step}: {100 * accuracy:.1f} % of the tokens right")
            if step >= args.steps:
                break
    accuracy = evaluate(encoder, decoder, tokenizer, held_out, args, device)
    print(f"{100 * accuracy:.1f} % of the tokens right")


if __name__ == "__main__":
    main()
