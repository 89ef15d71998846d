"""What annotations and classes of the project say about values."""

from __future__ import annotations

import ast

from whet_audit import torch_names as names
from whet_audit.abstract_types import UNKNOWN, Kind, Value
from whet_audit.project import Project
from whet_audit.source import Class, Module


class Annotations:
    """Reads annotations, by the meaning of their names."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def instance(self, cls: Class) -> Value:
        """An instance of a class of the project."""
        for base in self._project.ancestry(cls):
            if isinstance(base, str):
                made = names.made_by(base)
                if made is not None:  # "SAME": a wrapper of models, such as DataParallel
                    return Value(Kind.MODEL if made == "SAME" else Kind[made], cls=cls, dotted=base)
        return Value(Kind.OTHER, cls=cls)

    def value(self, module: Module, annotation: ast.expr | None) -> Value:
        """What is annotated so; UNKNOWN without an annotation, or where it says nothing of use."""
        if annotation is None:
            return UNKNOWN
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            last = annotation.value.split("[")[0].split(".")[-1]
            return Value(Kind[names.ANNOTATIONS[last]]) if last in names.ANNOTATIONS else UNKNOWN
        if isinstance(annotation, ast.BinOp):
            return self.value(module, annotation.left) or self.value(module, annotation.right)
        if isinstance(annotation, ast.Subscript):
            outer = ast.unparse(annotation.value).split(".")[-1]
            inside = annotation.slice
            if outer == "Optional":
                return self.value(module, inside)
            if outer in ("list", "List", "Sequence", "Iterable", "tuple", "Tuple"):
                each = inside.elts if isinstance(inside, ast.Tuple) and inside.elts else [inside]
                parts = tuple(self.value(module, one) for one in each)
                return Value(Kind.LIST, element=parts[0], elements=parts if len(parts) > 1 else ())
            if outer in ("dict", "Dict", "Mapping"):
                last_one = inside.elts[-1] if isinstance(inside, ast.Tuple) and inside.elts else None
                return Value(Kind.DICT, element=self.value(module, last_one))
            annotation = annotation.value
        dotted = self._project.dotted(module, annotation)
        if dotted is not None:
            cls = self._project.class_at(dotted)
            if cls is not None:
                return self.instance(cls)
            made = names.made_by(dotted)
            if made is not None:
                return Value(Kind.TENSOR if made == "SAME" else Kind[made], dotted=dotted)
        last = ast.unparse(annotation).split(".")[-1]
        return Value(Kind[names.ANNOTATIONS[last]]) if last in names.ANNOTATIONS else UNKNOWN
