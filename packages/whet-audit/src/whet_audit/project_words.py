"""What a project says anywhere about its set-up: compiling, half precision, memory formats, cudnn."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from whet_audit.project import Project
from whet_audit.source import Module

_HALF = frozenset(
    "autocast GradScaler bfloat16 half float16 mixed_precision amp fp16 bf16 custom_fwd torch_dtype".split()
)
_CONVOLUTIONS = frozenset("Conv2d ConvTranspose2d LazyConv2d".split())


@lru_cache(maxsize=2)
def words(project: Project) -> dict[Module, frozenset[str]]:
    """The names, attributes and keywords of each module, without comments and texts."""
    return {module: _words(module) for module in project.modules}


@lru_cache(maxsize=2)
def neighbours(project: Project) -> dict[Module, frozenset[Module]]:
    """Each module, those it imports, those that import it, and what these import: what runs in one program."""
    by_name: dict[str, Module] = {}
    for module in project.modules:
        parts = module.name.split(".")
        for start in range(len(parts)):
            by_name.setdefault(".".join(parts[start:]), module)
    imported: dict[Module, set[Module]] = {}
    for module in project.modules:
        found = (by_name.get(name) or by_name.get(name.rpartition(".")[0]) for name in module.imports.values())
        imported[module] = {one for one in found if one is not None}
    near = {module: {module} | imported[module] for module in project.modules}
    for module, others in imported.items():
        for other in others:
            near[other].add(module)
            near[module] |= imported[other]
    return {module: frozenset(found) for module, found in near.items()}


def says(project: Project, module: Module, *wanted: str) -> bool:
    """Whether the program a module is of has any of the names."""
    known = words(project)
    return any(not known[near].isdisjoint(wanted) for near in neighbours(project)[module])


def uses_half(project: Project, module: Module) -> bool:
    """Whether the program computes in half precision somewhere."""
    return says(project, module, *_HALF)


def has_convolutions(project: Project, module: Module) -> bool:
    """Whether the program makes 2-d convolutions, or a model of torchvision, which is made of them."""
    if says(project, module, *_CONVOLUTIONS):
        return True
    return any(name.startswith("torchvision.models") for name in module.imports.values())


def is_script(module: Module) -> bool:
    """Whether a module is a program: run as `__main__`, or with loops at its top."""
    for statement in module.tree.body:
        if isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test):
            return True
        if isinstance(statement, ast.For | ast.While):
            return True
    return False


def _words(module: Module) -> frozenset[str]:
    found = {node.attr for node in module.nodes(ast.Attribute)}
    found |= {node.id for node in module.nodes(ast.Name)}
    found |= {node.arg for node in module.nodes(ast.keyword) if node.arg}
    found |= set(module.imports)
    found |= {name.rpartition(".")[2] for name in module.imports.values()}
    return frozenset(found)


@lru_cache(maxsize=64)
def mentions_anywhere(project: Project, pattern: str) -> bool:
    """Whether a text of any module of the project matches a regular expression."""
    found = re.compile(pattern)
    return any(found.search(module.text) for module in project.modules)


@lru_cache(maxsize=1024)
def mentions(project: Project, module: Module, pattern: str) -> bool:
    """Whether a text of the program a module is of matches a regular expression."""
    found = re.compile(pattern)
    return any(found.search(near.text) for near in neighbours(project)[module])


def trains(project: Project, module: Module) -> bool:
    """Whether the program a module is of differentiates anything."""
    return mentions(project, module, r"\.backward\(|manual_backward|autograd\.grad\(|\.grad\b|Trainer\b|\boptim\b")
