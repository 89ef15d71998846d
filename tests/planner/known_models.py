"""Known models by their sizes, as their papers and configurations give them."""

from whet.planner.cluster import Chip, Cluster, Host, Link
from whet.planner.model_shape import Experts, LatentAttention, ModelShape


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200, **more: object) -> ModelShape:
    sizes: dict[str, object] = {
        "name": f"gpt-{layers}-{hidden}",
        "num_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_size": hidden // heads,
        "vocab_size": vocab,
        "is_gated": False,
        "is_tied": True,
        "has_biases": True,
        "norm": "layer",
        "num_positions": 2048,
        "drops": True,
    }
    return ModelShape.model_validate({**sizes, **more})


def llama(layers: int, hidden: int, inner: int, heads: int, kv_heads: int = 8, vocab: int = 128256) -> ModelShape:
    return ModelShape(
        name=f"llama-{layers}-{hidden}",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=hidden // heads,
        vocab_size=vocab,
    )


LLAMA_8B = llama(32, 4096, 14336, 32)
LLAMA_70B = llama(80, 8192, 28672, 64)
LLAMA_405B = llama(126, 16384, 53248, 128)
MIXTRAL = llama(32, 4096, 14336, 32, vocab=32000).model_copy(
    update={"experts": Experts(number=8, per_token=2, intermediate_size=14336)}
)
DEEPSEEK_V3 = ModelShape(
    name="deepseek-v3",
    num_layers=61,
    hidden_size=7168,
    intermediate_size=18432,
    num_heads=128,
    num_kv_heads=128,
    head_size=192,
    vocab_size=129280,
    experts=Experts(number=256, per_token=8, shared=1, intermediate_size=2048, num_dense_layers=3),
    latent=LatentAttention(query_rank=1536, rank=512, rotary_size=64, plain_size=128, value_size=128),
)


def h100s(number: int) -> Cluster:
    """Return a cluster of nodes with 8 H100, by NVIDIA's data sheets."""
    return Cluster(
        name="h100",
        chip=Chip(
            name="H100 SXM 80GB",
            flops={"bfloat16": 989e12, "fp8": 1979e12},
            memory_bytes=80e9,
            bytes_per_s=3.35e12,
            power_w=700,
            source="data sheet",
        ),
        chips_per_node=8,
        num_chips=number,
        host=Host(
            name="host",
            memory_bytes=2e12,
            power_w=3000,
            link=Link(name="PCIe 5", bytes_per_s=64e9, latency_s=1e-5, source="PCI-SIG"),
            source="data sheet",
        ),
        inside=Link(name="NVLink 4", bytes_per_s=450e9, latency_s=3e-6, source="data sheet"),
        between=Link(name="NDR", bytes_per_s=50e9, latency_s=6e-6, source="data sheet"),
    )
