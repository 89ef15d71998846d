"""Make sure that a module or a name is imported at the top of the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from whet_audit.finding import AddImport

Import = cst.Import | cst.ImportFrom
Line = cst.SimpleStatementLine | cst.BaseCompoundStatement


def add_import(module: cst.Module, wanted: AddImport) -> cst.Module:
    """`module` with the import, unless it is there: beside imports of the same package, else behind the first imports.

    An import inside a top-level `try` or `with` counts as there; one inside an `if` does not.
    """
    if any(_gives(each, wanted) for line in module.body for each in _imports(line)):
        return module
    text = f"import {wanted.module}" if wanted.name is None else f"from {wanted.module} import {wanted.name}"
    new = cst.parse_statement(text)
    index = _place(module.body, wanted)
    if index == 0:
        return _at_the_top(module, new)
    body = list(module.body)
    if not _has_imports(body[index - 1]) or _is_future(body[index - 1]):
        new = new.with_changes(leading_lines=(cst.EmptyLine(indent=False),))
    if index < len(body) and not _has_imports(body[index]):
        body[index] = _apart(body[index])
    return module.with_changes(body=[*body[:index], new, *body[index:]])


def _gives(node: Import, wanted: AddImport) -> bool:
    if isinstance(node, cst.Import):
        # `import a.b` binds a and loads a.b, so that it serves `import a` as well; under another name it does not
        given = [(f"{alias.evaluated_name}.", alias.evaluated_alias) for alias in node.names]
        whole = f"{wanted.module}."
        return wanted.name is None and any(
            name.startswith(whole) if alias is None else name == whole == f"{alias}." for name, alias in given
        )
    if wanted.name is None or node.relative or isinstance(node.names, cst.ImportStar) or node.module is None:
        return False
    if get_full_name_for_node(node.module) != wanted.module:
        return False
    return any(alias.name.value == wanted.name and alias.evaluated_alias in (None, wanted.name) for alias in node.names)


def _imports(line: cst.BaseStatement) -> Iterator[Import]:
    """The imports that run where `line`, a statement at the top level, does."""
    if isinstance(line, cst.SimpleStatementLine):
        yield from (each for each in line.body if isinstance(each, Import))
    elif isinstance(line, cst.Try | cst.TryStar | cst.With):
        body = line.body
        if isinstance(body, cst.IndentedBlock):
            for inner in body.body:
                yield from _imports(inner)
        elif isinstance(body, cst.SimpleStatementSuite):
            yield from (each for each in body.body if isinstance(each, Import))


def _place(body: Sequence[Line], wanted: AddImport) -> int:
    """How many statements come before the import."""
    package = wanted.module.split(".")[0]
    future = max((i + 1 for i, line in enumerate(body) if _is_future(line)), default=0)
    kin = [i for i, line in enumerate(body) if any(_package(each) == package for each in _imports(line))]
    start = kin[0] if kin else next((i for i, line in enumerate(body) if i >= future and _has_imports(line)), -1)
    if start < 0:
        return max(future, int(_is_docstring(body)))
    end = start
    while end < len(body) and (end in kin if kin else _has_imports(body[end])):
        end += 1
    return max(end, future)


def _at_the_top(module: cst.Module, new: Line) -> cst.Module:
    """Before all statements: below the comments that open the file, unless a blank line sets the last ones apart."""
    body = list(module.body)
    header = list(module.header)
    cut = max((i + 1 for i, line in enumerate(header) if line.comment is None), default=len(header))
    if body and cut < len(header):
        body[0] = body[0].with_changes(leading_lines=(*header[cut:], *body[0].leading_lines))
        header = header[:cut]
    if header and header[-1].comment is not None:
        header.append(cst.EmptyLine(indent=False))
    if not body:
        return module.with_changes(header=header, body=[new], has_trailing_newline=True)
    body[0] = _apart(body[0])
    return module.with_changes(header=header, body=[new, *body])


def _apart(line: Line) -> Line:
    if line.leading_lines and line.leading_lines[0].comment is None:
        return line
    return line.with_changes(leading_lines=(cst.EmptyLine(indent=False), *line.leading_lines))


def _has_imports(line: Line) -> bool:
    return any(True for _ in _imports(line))


def _package(node: Import) -> str:
    if isinstance(node, cst.Import):
        return (get_full_name_for_node(node.names[0].name) or "").split(".")[0]
    if node.relative or node.module is None:
        return ""
    return (get_full_name_for_node(node.module) or "").split(".")[0]


def _is_future(line: Line) -> bool:
    return any(isinstance(each, cst.ImportFrom) and _package(each) == "__future__" for each in _imports(line))


def _is_docstring(body: Sequence[Line]) -> bool:
    if not body or not isinstance(body[0], cst.SimpleStatementLine):
        return False
    first = body[0].body[0]
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString | cst.ConcatenatedString)
