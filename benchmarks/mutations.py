"""The small mistakes that `benchmarks/mutants.py` makes on purpose: which ones there are in a file of Python.

Most operators are Cosmic Ray's. Of its many replacements of one operator by another, only those are kept that a person
might write by mistake; the others fail at once and would make the figures look better than they are. For the same
reason annotations, decorators, and definitions outside of functions stay whole, and so do the assertions of what a
type checker cannot see.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import parso
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.tree import NodeOrLeaf

BORROWED = (
    *(f"ReplaceBinaryOperator_{a}" for a in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul")),
    *(f"ReplaceBinaryOperator_{a}" for a in ("Pow_Mul", "BitOr_BitAnd", "BitAnd_BitOr")),
    *(f"ReplaceComparisonOperator_{a}" for a in ("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")),
    *(f"ReplaceComparisonOperator_{a}" for a in ("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt")),
    *(f"ReplaceComparisonOperator_{a}" for a in ("Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt")),
    *("ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not"),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop"),
)
SWAPS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list"}
AUGMENTED = {"+=": "-=", "-=": "+=", "|=": "&=", "&=": "|="}


class DeleteStatement(Operator):
    """Puts `pass` in the place of an assignment or of a call whose value nobody takes."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Yield the node's place if it is such a statement."""
        if (
            node.type == "simple_stmt"
            and (
                node.children[0].type == "atom_expr"
                or (node.children[0].type == "expr_stmt" and "=" in node.get_code())
            )
            and node.search_ancestor("funcdef") is not None
        ):
            yield node.start_pos, node.end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        """Return the node with `pass` in it."""
        node.children[0] = parso.parse(f"{node.get_first_leaf().prefix}pass")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return none."""
        return ()


class SwapWord(Operator):
    """Calls `max` instead of `min`, or subtracts where something is added."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Yield the node's place if it is such a word."""
        if getattr(node, "value", "") in (SWAPS if node.type == "name" else AUGMENTED):
            yield node.start_pos, node.end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        """Return the node with the other word."""
        node.value = {**SWAPS, **AUGMENTED}[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return none."""
        return ()


@dataclass(frozen=True)
class Mutant:
    """A file with one mistake.

    Attributes:
        source: The whole file.
        line: The first line that differs, from 1 on.
        function: The qualified name of the function or class around it; "module" outside of all.
        old: The lines that differ as they were, without indentation.
        new: These lines in the mutant.
    """

    source: str
    line: int
    function: str
    old: str
    new: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """What stays the same while lines are added elsewhere in the file."""
        return self.function, self.old, self.new


def mutants_of(source: str) -> list[Mutant]:
    """Return all mutants of a file, no two of them equal, in the order of their operators."""
    seen, found = {_meaning(source)}, []
    operators = [get_operator(f"core/{name}")() for name in BORROWED] + [DeleteStatement(), SwapWord()]
    for operator in operators:
        occurrence = 0
        while (mutated := mutate_code(source, operator, occurrence)) is not None:
            occurrence += 1
            meaning = _meaning(mutated)
            if meaning and meaning not in seen:
                seen.add(meaning)
                found.append(changed(source, mutated))
    return found


def changed(source: str, mutated: str) -> Mutant:
    """Return a mutant with the lines in which it differs from the source."""
    before, after = source.splitlines(), mutated.splitlines()
    first = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    common = next(i for i, (a, b) in enumerate(zip(before[::-1], after[::-1], strict=False)) if a != b)
    old, new = (lines[first : len(lines) - common] for lines in (before, after))
    texts = (" ".join(line.strip() for line in lines) for lines in (old, new))
    return Mutant(mutated, first + 1, _function_at(source, first + 1), *texts)


def _function_at(source: str, line: int) -> str:
    """Return the qualified name of the innermost function or class around a line; "module" where there is none."""
    names: list[str] = []
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a header of C++
        return "module"
    while around := [
        node
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or line)
    ]:
        names.append(around[0].name)
        body = around[0].body
    return ".".join(names) or "module"


def _meaning(source: str) -> str:
    """Return a file's syntax tree without what is left out; "" where it is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns, node.decorator_list, node.args = None, [], _without_stars(node.args)
        elif isinstance(node, ast.ClassDef):
            node.decorator_list = []
        elif isinstance(node, ast.Assert):
            node.test = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def _without_stars(found: ast.arguments) -> ast.arguments:
    """Return a function's parameters as if all of them could be given by place."""
    parameters = [*found.posonlyargs, *found.args, *found.kwonlyargs]
    defaults = [*found.defaults, *(default for default in found.kw_defaults if default is not None)]
    return ast.arguments(
        posonlyargs=[],
        args=sorted(parameters, key=_place),
        vararg=found.vararg,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=found.kwarg,
        defaults=sorted(defaults, key=_place),
    )


def _place(node: ast.arg | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset
