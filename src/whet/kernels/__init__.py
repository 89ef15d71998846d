"""Provide whet's own operators, in C++ for CPUs and some in Triton for GPUs, each with a torch reference.

    whet.kernels.linear           pack_weights, linear           int8, int4, bf16 and float32 weights
    whet.kernels.paged_attention  attention over a cache in blocks
    whet.kernels.gated_mlp        pack_mlp, gated_mlp
    whet.kernels.sample           sample                         temperature, min-p, top-k, top-p
    whet.kernels.cross_entropy    cross_entropy_                 losses, and gradients in place of logits
    whet.kernels.selective_scan   selective_scan, ssd            the recurrences of Mamba-1 and Mamba-2, with gradients
    whet.kernels.causal_conv      causal_conv                    a convolution of each channel with its past

Importing one of these registers its operators with torch (torch.ops.whet.NAME). Without a C++ compiler they run in
torch, and log that once. Functions that only a decoder calls are not torch operators:

    whet.kernels.rms_norm         with the residual before it
    whet.kernels.qkv_rope         heads' norm, rotary embedding and the cache's new entries
    whet.kernels.decoder          all of these as one call a step
    whet.kernels.selective_model  a step of a selective state-space model as one call
"""
