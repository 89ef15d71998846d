"""whet's own operators, in C++ for CPUs, each with a torch reference.

    whet.kernels.linear           pack_weights, linear           int8, int4, bf16 and float32 weights
    whet.kernels.rms_norm         rms_norm and its kin           with the residual before, with quantisation after
    whet.kernels.qkv_rope         heads' norm, rotary embedding and the cache's new entries
    whet.kernels.paged_attention  attention over a cache in blocks
    whet.kernels.gated_mlp        pack_mlp, gated_mlp
    whet.kernels.sample           sample                         temperature, min-p, top-k, top-p
    whet.kernels.decoder          all of these as one call a step; no operator of its own

Importing one of the first six registers its operators with torch (torch.ops.whet.NAME). Without a C++ compiler they run
in torch, and say so once.
"""
