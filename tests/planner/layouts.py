"""Layouts of 64 chips that hypothesis draws, each one possible for Llama 8B's sizes."""

from hypothesis import strategies as st

from whet.planner.layout import Bytes, Layout, Work

CHIPS = 64
POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, Work]:
    tensor, pipeline, context = draw(POWERS), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    data = CHIPS // (tensor * pipeline * context)
    replicate = draw(st.sampled_from([number for number in (1, 2) if data % number == 0]))
    micro = draw(st.sampled_from([1, 2]))
    layout = Layout(
        replicate=replicate,
        shard=data // replicate,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        zero_stage=draw(st.sampled_from([0, 1, 2, 3])),
        virtual_stages=draw(st.sampled_from([1, 2])) if pipeline > 1 else 1,
        micro_batch_size=micro,
        recompute=draw(st.sampled_from(["none", "selective", "operators", "full"])),
        precision=draw(st.sampled_from(["bfloat16", "fp8"])),
        sequence_parallel=draw(st.booleans()),
        fused_attention=draw(st.booleans()),
        compiled=draw(st.booleans()),
        overlaps_tensor=draw(st.booleans()),
        overlaps_data=draw(st.booleans()),
        software=draw(st.sampled_from(["torch-2024", "megatron-2024"])),
        bytes=draw(st.sampled_from([Bytes(), Bytes(parameter=4, gradient=4, state=8)])),
    )
    rows = data * micro * draw(st.sampled_from([1, 3, 8]))
    return layout, Work(global_batch_size=rows, sequence_length=draw(st.sampled_from([1024, 8192])))
