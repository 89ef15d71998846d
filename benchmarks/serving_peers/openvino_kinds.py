"""Which models OpenVINO is given: int8 or int4 weights, and "-tuned" behind where the engine is set by hand."""

from pathlib import Path

_TUNED = "-tuned"


def weight_format(kind: str) -> str:
    return kind.removesuffix(_TUNED)


def is_tuned(kind: str) -> bool:
    return kind.endswith(_TUNED)


def directory_of(work: Path, kind: str) -> Path:
    return work / f"openvino-{weight_format(kind)}"
