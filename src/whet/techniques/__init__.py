"""One optimisation, one file, and one line in this table."""

from whet.techniques import (
    autocast,
    bf16,
    channels_last,
    fp16,
    fuse_conv_bn,
    fuse_qkv,
    inductor,
    int4_weight,
    int8_dynamic,
    int8_static,
    int8_weight,
    keep_precision,
    onnxruntime,
    openvino,
    sdpa_attention,
    threads,
    torch_compile,
)
from whet.techniques.technique import Applies, Candidate, Refused, Stage, Technique

__all__ = ["FOLLOWING", "TABLE", "Applies", "Candidate", "Refused", "Stage", "Technique"]

# In the order of their stages; within a stage, as they compose.
TABLE: dict[str, Technique] = {
    module.NAME: module
    for module in (
        fuse_conv_bn,
        sdpa_attention,
        fuse_qkv,
        bf16,
        fp16,
        autocast,
        keep_precision,
        int8_static,
        int8_dynamic,
        int8_weight,
        int4_weight,
        channels_last,
        inductor,
        openvino,
        onnxruntime,
        torch_compile,
        threads,
    )
}

# Known to pay elsewhere and not in the table yet: name -> why, for the report.
FOLLOWING: dict[str, str] = {
    "tensorrt": "needs a CUDA device and TensorRT, and is not in this version of whet",
    "fp8": "needs a CUDA device with 8-bit floating-point products (sm_89), and is not in this version of whet",
}
