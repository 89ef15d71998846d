"""Put an expression in the place of another one, with the parentheses it needs there."""

from __future__ import annotations

from collections import Counter

import libcst as cst

from whet_audit.fixes.location import Unfit

# Bind as tightly as a name, wherever they stand.
_ATOMS = (
    cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.BaseNumber | cst.SimpleString | cst.FormattedString
    | cst.Ellipsis | cst.List | cst.Set | cst.Dict | cst.ListComp | cst.SetComp | cst.DictComp
)  # fmt: skip
# Need their own parentheses nearly everywhere.
_LOOSE = cst.NamedExpr | cst.Yield | cst.Tuple | cst.GeneratorExp | cst.StarredElement
# What holds a whole expression, so that any but the loose ones can stand there bare.
_HOLDERS = (
    cst.Assign | cst.AnnAssign | cst.AugAssign | cst.Return | cst.Expr | cst.If | cst.While | cst.For | cst.Index
    | cst.Element | cst.Param
)  # fmt: skip


def parse_expression(source: str) -> cst.BaseExpression:
    """The expression that `source` spells, with parentheses where it needs them to span lines. Raises Unfit."""
    for text in (source.strip(), f"({source.strip()})"):
        try:
            return cst.parse_expression(text)
        except cst.ParserSyntaxError:
            continue
    raise Unfit(f"what it would put in is no expression: {source.strip()!r}")


def in_place_of(
    old: cst.BaseExpression, new: cst.BaseExpression, parent: cst.CSTNode, *, touches_word: bool
) -> cst.BaseExpression:
    """`new` as it must be written where `old` stands in `parent`; the parentheses around `old` stay.

    touches_word: a letter or digit stands right before or after `old`, as in `return[1]`.
    """
    lpar, rpar = outer_parentheses(old)
    if lpar:
        if new.lpar and not isinstance(new, cst.Tuple | cst.GeneratorExp):
            new = new.with_changes(lpar=(), rpar=())
        return new.with_changes(lpar=(*lpar, *new.lpar), rpar=(*new.rpar, *rpar))
    if not new.lpar and (touches_word or _needs_parentheses(new, parent)):
        return new.with_changes(lpar=(cst.LeftParen(),), rpar=(cst.RightParen(),))
    return new


def outer_parentheses(node: cst.BaseExpression) -> tuple[tuple[cst.LeftParen, ...], tuple[cst.RightParen, ...]]:
    """The parentheses around `node` that are not part of it, as a tuple's and a generator's innermost are."""
    own = 1 if isinstance(node, cst.Tuple | cst.GeneratorExp) and node.lpar else 0
    return tuple(node.lpar)[: len(node.lpar) - own], tuple(node.rpar)[own:]


def lost_comments(old: cst.CSTNode, new: cst.CSTNode | None) -> list[cst.Comment]:
    """Comments within `old` that `new` does not hold, in their order; those in parentheses that stay don't count."""
    if isinstance(old, cst.BaseExpression):
        old = old.with_changes(lpar=(), rpar=())
    kept = Counter(comment.value for comment in comments(new)) if new is not None else Counter[str]()
    lost = []
    for comment in comments(old):
        if kept[comment.value] > 0:
            kept[comment.value] -= 1
        else:
            lost.append(comment)
    return lost


def comments(node: cst.CSTNode) -> list[cst.Comment]:
    """Every comment within `node`, in the order of the source."""
    if isinstance(node, cst.Comment):
        return [node]
    return [comment for child in node.children for comment in comments(child)]


def _needs_parentheses(new: cst.BaseExpression, parent: cst.CSTNode) -> bool:
    if isinstance(new, _LOOSE):
        return True
    if isinstance(parent, cst.FormattedStringExpression):  # `{` twice in a row is a brace, `:` begins the format
        return not isinstance(new, cst.Name | cst.Attribute)
    if isinstance(parent, cst.Attribute):  # 1.real is no number and no attribute
        return not isinstance(new, _ATOMS) or isinstance(new, cst.BaseNumber)
    if isinstance(new, _ATOMS) or isinstance(parent, _HOLDERS):
        return False
    return not (isinstance(parent, cst.Arg) and not parent.star)
