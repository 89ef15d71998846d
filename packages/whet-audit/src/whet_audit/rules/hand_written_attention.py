"""CMP102 hand-written-attention: softmax(q k^T) v as separate operators, each through memory.

Finds       A softmax whose input is a product of two activations (matmul, @, bmm, einsum, baddbmm) and whose output
            is multiplied with a third, with scaling, masks and dropout between; over several statements.
Why slow    The matrix of scores is written and read again by every operator, and training keeps copies of it.
            A fused kernel never writes it.
Example     w = (q @ k.transpose(-2, -1) * scale).softmax(-1); out = w @ v
Instead     out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, scale=scale)
Gain        grows with the sequence's length; little below a few hundred tokens. Memory falls with it.
Fix         unsafe, and only for the plainest form: sums run in another order. None where the project supports a torch
            before 2.1, whose function takes no `scale`.
Source      Dao et al. 2022, "FlashAttention"; torch.nn.functional.scaled_dot_product_attention.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.attention import operands, product_in, scores_of, weighted_by
from whet_audit.dataflow import last_name, latest, reads
from whet_audit.finding import (
    AddImport,
    Confidence,
    Edit,
    Fix,
    Gain,
    Hit,
    Priority,
    ReplaceExpression,
    ReplaceStatement,
)
from whet_audit.project import name_of
from whet_audit.requirements import supports
from whet_audit.rule_context import RuleContext

CODE = "CMP102"
NAME = "hand-written-attention"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.3, "sequences of several hundred tokens or more; less for short ones")
_ALTERNATIVE = re.compile(r"scaled_dot_product|flash_?att|xformers|memory_efficient_attention|sdpa", re.I)
_SPLIT_HEADS = ("rearrange", "transpose", "permute", "view", "reshape", "unflatten")
_DISPATCHED = ("ALL_ATTENTION_FUNCTIONS", "_attn_implementation", "SdpaAttention", "SdpaSelfAttention")


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of softmax between two products."""
    if any(word in context.module.text for word in _DISPATCHED):
        return
    for call in context.calls("softmax", "Softmax", "softmax_one", "attend"):
        scores = scores_of(context, call)
        product = product_in(context, scores, 0) if scores is not None else None
        if product is None or (product is scores and isinstance(scores, ast.Name)):
            continue
        weighted = weighted_by(context, call, 0)
        if weighted is None or _has_alternative(context, call):
            continue
        hot = context.hot(call)
        if hot is not None and hot.guard:
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=(
                f"{context.shown(call)} of {context.shown(product)}: "
                f"attention written out, its scores go through memory"
            ),
            confidence=Confidence.MEDIUM if hot is not None else Confidence.LOW,
            gain=_GAIN,
            fix=_fused(context, call, scores, product, weighted) if scores is not None else None,
        )


def _has_alternative(context: RuleContext, call: ast.Call) -> bool:
    """Whether the same function or class can use a fused kernel: then this is its fallback."""
    cls = context.class_of(call)
    scopes = [context.function_of(call).node, *([cls.node] if cls is not None else [])]
    return any(not isinstance(scope, ast.Module) and _ALTERNATIVE.search(context.source(scope)) for scope in scopes)


def _fused(context: RuleContext, call: ast.Call, scores: ast.expr, product: ast.expr, weighted: ast.expr) -> Fix | None:
    """For scores = q @ k.transpose(-2, -1) [* or / scale]; weights = softmax(scores); weights @ v, in one block."""
    if supports(context.module.path, (2, 1)) is False or context.module.imports.get("torch", "torch") != "torch":
        return None
    used: list[ast.stmt] = []  # statements that only hand the value on, which go away
    scaled = _only_value(context, scores, used)
    scale = "1.0"
    if isinstance(scaled, ast.BinOp) and isinstance(scaled.op, ast.Mult | ast.Div):
        if not _is_plain_number(context, scaled.right):
            return None
        written = context.source(scaled.right)
        scale = written if isinstance(scaled.op, ast.Mult) else f"1.0 / ({written})"
        scaled = _only_value(context, scaled.left, used)
    if scaled is not product or not _is_last_dimension(context, call):
        return None
    query, key = operands(context, product)
    weights, values = operands(context, weighted)
    if (
        _only_value(context, weights, used) is not call
        or not isinstance(query, ast.Name)
        or not isinstance(values, ast.Name)
    ):
        return None
    if not _is_transposed(key) or not isinstance(key, ast.Call) or not isinstance(key.func, ast.Attribute):
        return None
    last = context.statement(weighted)
    if any(context.parent(statement) is not context.parent(last) for statement in used):
        return None
    names = [context.source(one) for one in (query, key.func.value, values)]
    called = f"torch.nn.functional.scaled_dot_product_attention({', '.join(names)}, scale={scale})"
    edits: list[Edit] = [ReplaceExpression(context.span(weighted), called)]
    edits += [ReplaceStatement(context.span(statement), "") for statement in used]
    if not any(isinstance(one, ast.Call) and name_of(one) in _SPLIT_HEADS for one in context.function_of(call).calls):
        return None  # the kernel takes at least a batch and a sequence of vectors: those of heads surely are
    edits.append(AddImport("torch"))
    return Fix("let one fused kernel do the attention", False, tuple(edits))


def _only_value(context: RuleContext, e: ast.expr, used: list[ast.stmt]) -> ast.expr | None:
    """What a name stands for, where it is read once; any other expression itself."""
    if not isinstance(e, ast.Name):
        return e
    bound = latest(context, e)
    if bound is None or e.id in {argument.arg for argument in context.function_of(e).arguments}:
        return None
    statement = context.statement(bound)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or statement.value is not bound:
        return None
    if len(reads(context.function_of(e), e.id, statement.end_lineno or statement.lineno)) != 1:
        return None
    used.append(statement)
    return bound


def _is_plain_number(context: RuleContext, e: ast.expr) -> bool:
    return context.kind(e) is Kind.NUMBER or (isinstance(e, ast.Call) and context.dotted(e.func) == "math.sqrt")


def _is_last_dimension(context: RuleContext, call: ast.Call) -> bool:
    position = (
        0 if isinstance(call.func, ast.Attribute) and not (context.dotted(call.func) or "").startswith("torch") else 1
    )
    return (
        context.constant(context.keyword(call, "dim", position)) == -1
        and len(call.args) + len(call.keywords) == position + 1
    )


def _is_transposed(key: ast.expr) -> bool:
    """x.transpose(-2, -1) and its like."""
    if not isinstance(key, ast.Call) or last_name(key.func) != "transpose" or key.keywords:
        return False
    return sorted(ast.unparse(argument) for argument in key.args) == ["-1", "-2"]
