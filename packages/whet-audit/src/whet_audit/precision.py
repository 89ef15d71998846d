"""Signs of the number format a program trains in: mixed precision, loss scaling, TF32."""

from __future__ import annotations

import re

from whet_audit.project import Project
from whet_audit.source import Module

_MIXED = re.compile(
    r"autocast|GradScaler|Accelerator\b|accelerator\.|[Ff]abric\b|deepspeed|DeepSpeed|mixed_precision|MixedPrecision|"
    r"float8|transformer_engine|bfloat16|torch\.half\b|\.half\(\)|float16|amp_wrapper|AmpOptim|precision_scope|"
    r"set_default_dtype|autocast_smart|use_amp|\bbf16\b|param_dtype|amp_grad|TrainingArguments|"
    r"pl\.Trainer|Lightning(Module|Lite)|L\.Trainer|\bstrategy\.backward|grad_scaler|DataParallelEngine"
)
_FP16 = re.compile(r"fp16|_amp\b|half_precision|\bhalf\b|\bamp\b|precision\s*=", re.IGNORECASE)
_APEX = re.compile(r"\bapex\b")
_SCALES = re.compile(r"scaler|scale_loss|loss_scale|Accelerator|[Ff]abric|deepspeed|TrainingArguments|scale_factor_amp")
_ENVIRONMENTS = re.compile(r"^\s*(import|from) (gym|gymnasium|stable_baselines3|pfrl|pettingzoo|dm_control)\b", re.M)
_TF32 = re.compile(r"allow_tf32|set_float32_matmul_precision|fp32_precision|enable_tf32")


def is_mixed(module: Module) -> bool:
    """Whether the file shows any means of mixed or reduced precision that is kept up today."""
    return _MIXED.search(module.text) is not None


def speaks_of_half(module: Module) -> bool:
    """Whether the file speaks of fp16 or amp at all, so that another file may see to it."""
    return _FP16.search(module.text) is not None


def is_only_apex(module: Module) -> bool:
    """Whether mixed precision comes from apex alone."""
    return not is_mixed(module) and _APEX.search(module.text) is not None


def scales_loss(module: Module) -> bool:
    """Whether the file shows loss scaling, by its own scaler or a framework's."""
    return _SCALES.search(module.text) is not None


def is_of_small_models(module: Module) -> bool:
    """Whether the file learns to act in an environment, mostly with networks too small for tensor cores."""
    return _ENVIRONMENTS.search(module.text) is not None


def sets_tf32(project: Project) -> bool:
    """Whether any file of the project chooses the precision of float32 products."""
    return any(_TF32.search(module.text) for module in project.modules)
