"""Read which module imports which, lazily or by a string that names it; annotations alone don't count."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType


def modules(package: ModuleType) -> dict[str, Path]:
    """Every module of a package but itself, which hands on names and is imported before all others."""
    found, root = {}, Path(str(package.__file__)).parent
    for path in sorted(root.rglob("*.py")):
        parts = (package.__name__, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in found.items() if name != package.__name__}


def imports(package: ModuleType) -> dict[str, dict[str, int]]:
    """For each module of a package the modules of it that it imports, each with a line."""
    known = modules(package)
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for module, path in known.items():
        for name, line in _named(ast.parse(path.read_text(encoding="utf-8")), f"{package.__name__}."):
            target = name
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target and target != module:
                found[module].setdefault(target, line)
    return found


def _named(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """What a tree imports, or names as text: "whet.cli.tune" or "whet.measure.child:main"."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(prefix):
            name = node.value.partition(":")[0]
            if not name.endswith(".") and " " not in name:
                yield name, node.lineno
        yield from _named(node, prefix)


def circles(graph: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    """The modules that import each other, directly or through others (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = list[list[str]]()

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in graph.get(module, ()):
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            place = stack.index(module)
            found.append(sorted(stack[place:]))
            del stack[place:]

    for module in graph:
        if module not in order:
            visit(module)
    return [circle for circle in found if len(circle) > 1]
