"""Results as a tuning run would leave them, with figures of the size a small server gives; none of them measured."""

import random
from typing import Any

from whet.core.recipe import Step
from whet.tuner.records import Agreement, TrialRecord
from whet.tuner.result import (
    Diagnosed,
    LayerRow,
    MeasuredVariant,
    RefusedTechnique,
    Result,
    UntriedTechnique,
)

LIMITS = {
    "read_bandwidth": 47.8e9,
    "gemm": {"float32": 131e9, "bfloat16": 812e9, "int8": 1_640e9},
    "device": "cpu",
    "cached_bandwidth": [[32_768, 410e9], [1_048_576, 160e9], [33_554_432, 62e9]],
    "operator_s": 2.1e-6,
    "notes": ["float16: 0.24 GFLOP/s, far below float32; not offered"],
}
MACHINE = {
    "chip": "Intel(R) Xeon(R) Processor (6/143/8)",
    "isa": ["avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx", "amx_bf16", "amx_int8"],
    "cores": 2,
    "memory_bytes": 8_252_342_272,
    "gpu": "",
    "gpu_driver": "",
    "system": "Linux x86_64",
    "python": "3.11.9",
    "torch": "2.13.0+cpu",
    "torch_threads": 2,
}
VERSIONS = {
    "whet": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "openvino": "2026.4.0", "nncf": "3.4.0",
}  # fmt: skip

COMPILE = Step(technique="inductor", options={"engine": "jit", "mode": "default", "freezing": False})
AOT = Step(technique="inductor", options={"engine": "aot", "mode": "default", "freezing": True})
FUSE = Step(technique="fuse_conv_bn")
LAST = Step(technique="channels_last")
BF16 = Step(technique="bf16", options={"keep_first_and_last": True})
INT8 = Step(technique="int8_static", options={"observer": "percentile", "percentile": 99.99, "per_channel": True})
OPENVINO8 = Step(technique="openvino", options={"precision": "int8", "preset": "mixed", "threads": 2})
ONNX = Step(technique="onnxruntime", options={"precision": "int8", "per_channel": True})


def _trials_of_a_gain(rng: random.Random) -> list[TrialRecord]:
    return [
        _done(0, [COMPILE], rng, latency=44.1, predicted=1.9, drop=0.0, size=94_100_000, share=0.17),
        _done(1, [OPENVINO8], rng, latency=6.02, predicted=9.7, drop=0.0008, size=24_700_000, share=0.31),
        _done(2, [ONNX], rng, latency=9.4, predicted=9.7, drop=0.0021, size=24_300_000, share=0.2),
        _done(3, [BF16, AOT], rng, latency=15.2, predicted=5.4, drop=0.0002, size=47_900_000, share=0.24),
        _done(
            4, [INT8, AOT], rng, latency=7.7, predicted=8.8, drop=0.0182, size=24_100_000, share=0.25,
            status="rejected", reason="accuracy drops by 1.8%, more than the 1.0% allowed",
            notes=["4 of 53 layers stay in float32: their weights are not constant"],
        ),
        _done(5, [FUSE, LAST, BF16, AOT], rng, latency=13.6, predicted=5.9, drop=0.0001, size=47_700_000, share=0.27),
        _done(6, [FUSE, OPENVINO8], rng, latency=5.87, predicted=9.9, drop=0.0008, size=24_700_000, share=0.32),
        _done(7, [LAST], rng, latency=51.8, predicted=1.2, drop=0.0, size=102_500_000, share=0.13),
        TrialRecord(
            number=8, steps=[Step(technique="int4_weight", options={"group_size": 32}), AOT], status="failed",
            reason="the trial's process was killed by signal 9 (out of memory, at 6.1 GB)", predicted=2.1, seconds=71.0,
        ),
        _done(
            9, [Step(technique="int8_dynamic")], rng, latency=61.0, predicted=1.1, drop=0.31, size=96_100_000,
            share=0.11, status="rejected", reason="accuracy drops by 31.0%, more than the 1.0% allowed",
        ),
    ]  # fmt: skip


def gain() -> Result:
    """An image classifier, eight times faster, with everything a report can show."""
    rng = random.Random(1)
    trials = _trials_of_a_gain(rng)
    baseline = _point([], rng, 56.1, 1.0, size=102_400_000, peak=612_000_000, quality=0.9817, share=0.12)
    compile_only = _point(
        [COMPILE], rng, 44.3, 56.1 / 44.3, size=94_100_000, peak=704_000_000, quality=0.9817, share=0.15
    )
    best = _point(
        [FUSE, OPENVINO8], rng, 5.91, 56.1 / 5.91, size=24_700_000, peak=388_000_000, quality=0.9809, share=0.32
    )
    second = _point([OPENVINO8], rng, 6.05, 56.1 / 6.05, size=24_700_000, peak=391_000_000, quality=0.9809, share=0.31)
    return Result(
        target="hf:models/resnet-50",
        verdict="gain",
        sentence=(
            f"{best.label} is 9.49x as fast as the original (95 % interval 9.41 to 9.58), torch.compile alone 1.27x; "
            "accuracy: 0.9817 before, 0.9809 after."
        ),
        quality_name="accuracy",
        baseline=baseline,
        compile_only=compile_only,
        best=best,
        finalists=[second, best, compile_only],
        trials=trials,
        refused=[
            RefusedTechnique(technique="fp16", reason="this chip multiplies float16 at 0.24 GFLOP/s, float32 at 131"),
            RefusedTechnique(technique="sdpa_attention", reason="the model holds no attention"),
            RefusedTechnique(technique="tensorrt", reason="needs an NVIDIA GPU; none is here"),
        ],
        untried=[
            UntriedTechnique(technique="autocast", bound=4.1, reason="the time was up before its turn"),
            UntriedTechnique(
                technique="fuse_qkv",
                bound=1.3,
                reason="by itself it could gain 1.30x at most, and 6.10x was reached without it",
            ),
        ],
        pareto=[1, 3, 5, 6],
        diagnosis=_diagnosis(rng),
        machine=MACHINE,
        fingerprint="3fa91c07be52",
        limits=LIMITS,
        versions=VERSIONS,
        command="whet tune hf:models/resnet-50 --objective latency --max-drop 0.01 --budget 300s",
        started_at="2026-03-04T10:11:12+00:00",
        seconds=287.4,
        out="whet-out/resnet-50",
    )


def no_gain() -> Result:
    """A tiny model on which nothing helps, with a failed and a refused trial."""
    rng = random.Random(2)
    compile_only = _point([COMPILE], rng, 0.0431, 0.96, size=41_000, peak=221_000_000, quality=0.641, verdict="fail")
    close = _point(
        [BF16, AOT], rng, 0.0406, 1.02, size=22_000, peak=219_000_000, quality=0.6402, verdict="inconclusive"
    )
    baseline = _point([], rng, 0.0414, 1.0, size=40_400, peak=214_000_000, quality=0.641)
    baseline.noise = 1.034
    long = "RuntimeError: could not create a primitive\n" + "\n".join(
        f"  at frame {i} of the compiler" for i in range(20)
    )
    return Result(
        target="net.py:build",
        verdict="no-gain",
        sentence=(
            "No gain: nothing that was tried is proved better than the original in latency (noise floor 3.4%); "
            "the original stays."
        ),
        quality_name="macro F1",
        baseline=baseline,
        compile_only=compile_only,
        best=baseline,
        finalists=[close, compile_only],
        trials=[
            _done(0, [COMPILE], rng, latency=0.0433, base=0.0414, predicted=1.3, drop=0.0, size=41_000),
            _done(1, [BF16, AOT], rng, latency=0.0404, base=0.0414, predicted=1.4, drop=0.0012, size=22_000),
            TrialRecord(number=2, steps=[INT8, AOT], status="failed", reason=long, predicted=1.2, seconds=3.1),
            TrialRecord(
                number=3, steps=[LAST], status="refused", reason="channels_last: the model holds no convolution"
            ),
        ],
        refused=[RefusedTechnique(technique="openvino", reason="needs openvino: pip install 'torch-whet[openvino]'")],
        pareto=[1],
        diagnosis=Diagnosed(
            sentence="Overhead-bound: 91% of the time goes into calling 14 operators; arithmetic needs 2 µs of 41.",
            bound="overhead-bound",
            shares={"compute-bound": 0.03, "bandwidth-bound": 0.06, "overhead-bound": 0.91},
            share_of_limit=0.04,
            layers=[
                _layer("fc1", "Linear", 0.018, 65_536, 34_000, "overhead-bound", 0.05),
                _layer("", "aten::relu", 0.009, 0, 1_024, "overhead-bound", 0.01, calls=2),
            ],
        ),
        machine=MACHINE,
        fingerprint="3fa91c07be52",
        limits=LIMITS,
        versions=VERSIONS,
        command="whet tune net.py:build --objective latency --max-drop 0.01 --budget 60s",
        started_at="2026-03-04T10:11:12+00:00",
        seconds=48.0,
        budget_s=60,
        out="whet-out/build",
    )  # fmt: skip


def agreement_only() -> Result:
    """A model without a quality metric, tuned for size from Python; torch.compile was screened only."""
    rng = random.Random(3)
    near = Agreement(relative_error=0.0037, cosine=0.999993, top1=1.0)
    far = Agreement(relative_error=0.081, cosine=0.9967, top1=0.984)
    weight = Step(technique="int8_weight", options={"group_size": 128})
    trials = [
        _done(0, [COMPILE], rng, latency=143.0, base=164.0, predicted=1.5, drop=0.0, size=438_000_000, agreement=near),
        _done(
            1,
            [weight, AOT],
            rng,
            latency=150.0,
            base=164.0,
            predicted=1.4,
            drop=0.0033,
            size=111_000_000,
            agreement=far,
        ),
        TrialRecord(number=2, steps=[BF16, AOT], status="running", predicted=5.4),
    ]
    trials = [t.model_copy(update={"quality": t.agreement.cosine if t.agreement else None}) for t in trials]
    baseline = _point([], rng, 164.0, 1.0, size=438_000_000, peak=1_450_000_000)
    best = _point([weight, AOT], rng, 150.6, 1.09, size=111_000_000, peak=940_000_000, quality=far.cosine)
    best.agreement = far
    compile_only = _point([COMPILE], rng, 143.0, 1.15, size=438_000_000, peak=0, verdict="screened")
    compile_only.process_latencies_ms, compile_only.p_value, compile_only.p90_ms = [], None, None
    return Result(
        target="BertModel",
        objective="size",
        verdict="gain",
        sentence=f"{best.label} is 1.09x as fast as the original and is 3.95x smaller on disk.",
        quality_name="agreement (cosine)",
        baseline=baseline,
        compile_only=compile_only,
        best=best,
        finalists=[best],
        trials=trials,
        pareto=[0, 1],
        machine=MACHINE,
        fingerprint="3fa91c07be52",
        versions=VERSIONS,
        limits={"read_bandwidth": 47.8e9, "gemm": {}},
        started_at="2026-03-04T10:11:12+00:00",
        seconds=120.0,
        out="/tmp/whet-model",
    )


def _done(
    number: int,
    steps: list[Step],
    rng: random.Random,
    *,
    latency: float,
    predicted: float,
    drop: float,
    size: int,
    base: float = 56.1,
    share: float | None = None,
    **more: Any,
) -> TrialRecord:
    speedup = base / latency
    return TrialRecord(
        **{
            "number": number, "steps": steps, "status": "done", "predicted": predicted, "speedup": speedup,
            "speedup_ci95": (speedup * 0.97, speedup * 1.02), "latency_ms": latency, "drop": drop,
            "baseline_latency_ms": base * rng.uniform(0.98, 1.03), "quality": 0.9817 * (1 - drop),
            "agreement": Agreement(relative_error=0.01 + drop, cosine=1 - drop / 3 - 1e-6, top1=0.998),
            "size_bytes": size, "share_of_limit": share, "build_s": rng.uniform(1, 40), "seconds": 20.0, **more,
        }
    )  # fmt: skip


def _point(
    steps: list[Step],
    rng: random.Random,
    latency: float,
    speedup: float,
    *,
    size: int,
    peak: int,
    quality: float | None = None,
    share: float | None = None,
    verdict: str = "pass",
) -> MeasuredVariant:
    more: dict[str, Any] = {}
    if steps:
        more = {
            "label": " + ".join(map(str, steps)), "speedup": speedup, "speedup_ci95": (speedup * 0.985, speedup * 1.02),
            "p_value": {"pass": 0.0078, "fail": 0.0391, "inconclusive": 0.383}.get(verdict), "verdict": verdict,
        }  # fmt: skip
    return MeasuredVariant(
        steps=steps, latency_ms=latency, p90_ms=latency * 1.06, throughput_per_s=1e3 / latency, peak_bytes=peak,
        size_bytes=size, quality=quality, share_of_limit=share, noise=1.018,
        process_latencies_ms=[latency * rng.uniform(0.98, 1.04) for _ in range(8)], **more,
    )  # fmt: skip


def _diagnosis(rng: random.Random) -> Diagnosed:
    layers = [
        _layer("resnet.embedder.embedder.convolution", "Conv2d", 4.9, 236_000_000, 3_900_000, "compute-bound", 0.37)
    ]
    for i in range(30):
        name = f"resnet.encoder.stages.{i // 8}.layers.{i % 8}.layer.1.convolution"
        flops = int(rng.choice([103e6, 206e6, 231e6]) * rng.uniform(0.9, 1.1))
        time_ms = rng.uniform(0.6, 3.2)
        num_bytes = int(rng.uniform(1e6, 9e6))
        layers.append(_layer(name, "Conv2d", time_ms, flops, num_bytes, "compute-bound", flops / time_ms / 131e6))
    layers += [
        _layer("normalization", "BatchNorm2d", 5.4, 44_000_000, 88_000_000, "bandwidth-bound", 0.34, calls=53),
        _layer("classifier.1", "Linear", 0.31, 4_096_000, 8_200_000, "bandwidth-bound", 0.55),
        _layer("", "aten::add_", 1.9, 0, 30_000_000, "bandwidth-bound", 0.3, calls=16),
        _layer("pooler", "AdaptiveAvgPool2d", 0.2, 100_000, 400_000, "overhead-bound", 0.04),
    ]  # fmt: skip
    return Diagnosed(
        sentence=(
            "Compute-bound: 79% of the time goes into layers limited by arithmetic, at 35% of this machine's "
            "float32 peak; int8 could be 12.5x as fast at most."
        ),
        bound="compute-bound",
        shares={"compute-bound": 0.79, "bandwidth-bound": 0.16, "overhead-bound": 0.05},
        share_of_limit=0.12,
        layers=layers,
    )


def _layer(
    name: str, kind: str, time_ms: float, flops: int, num_bytes: int, bound: str, share: float, *, calls: int = 1
) -> LayerRow:
    return LayerRow(
        name=name, kind=kind, calls=calls, time_ms=time_ms, flops=flops, bytes=num_bytes, bound=bound,
        share_of_limit=share,
    )  # fmt: skip
