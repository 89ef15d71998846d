"""Read a JSON schema as forms: the alternatives of the values that it allows, with everything that holds together.

Each subschema is read once. What is inside a value (items, properties) stays unread until it is asked for, so that a
schema may refer to itself.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from whet.server.schema_size import nested
from whet.server.schemas.forms import (
    ANY,
    Array,
    Child,
    Constant,
    Form,
    Intersecting,
    Number,
    Object,
    SchemaRefused,
    Text,
)
from whet.server.schemas.keywords import REFERENCES, exact, members, names, own_forms, subschemas
from whet.server.schemas.negation import negated
from whet.server.schemas.patterns import matches

_DEPTH = 4  # how deep two schemas are searched for what keeps them apart
_WIDEST = 64  # texts that are quoted in full by an error


class Reader:
    """Reads one schema, and what it refers to within itself."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._schemas = list[Any]()
        self._places = dict[int | str, int]()
        self._own = {id(one) for _, one in nested(root) if isinstance(one, dict)}
        self._forms = dict[int, tuple[Form, ...]]()
        self._open = set[int]()
        self._num_cut = 0
        self._by_anchor = _anchors(root)
        self._known = dict[Child, tuple[Form, ...]]()
        self.meeting = Intersecting(matches)

    def child(self, schema: Any) -> Child | None:
        """Return a subschema as a child; None for one that allows nothing.

        Raises:
            SchemaRefused: It is no schema.
        """
        if schema is True or schema == {}:
            return ()
        if schema is False:
            return None
        if not isinstance(schema, dict):
            raise SchemaRefused(f"{_quoted(schema)} stands where a schema must stand")
        key = id(schema) if id(schema) in self._own else json.dumps(schema, sort_keys=True)
        if key not in self._places:
            self._places[key] = len(self._schemas)
            self._schemas.append(schema)
        return (self._places[key],)

    def forms(self, child: Child | None) -> tuple[Form, ...]:
        """Return the alternatives of a child.

        Raises:
            SchemaRefused: A part of it cannot be enforced.
        """
        if child is None:
            return ()
        if child not in self._known:
            before = self._num_cut
            found = ANY
            for place in child:
                found = self.meeting.all(found, self._of_place(place)) if found is not ANY else self._of_place(place)
            if self._num_cut != before and self._open:
                return found  # a part is missing: a schema that is being read refers to itself
            self._known[child] = found
        return self._known[child]

    def of(self, schema: Any) -> tuple[Form, ...]:
        """Return the alternatives of a subschema. It raises as `forms` does."""
        return self.forms(self.child(schema))

    def _of_place(self, place: int) -> tuple[Form, ...]:
        if place in self._forms:
            return self._forms[place]
        if place in self._open:
            self._num_cut += 1
            return ()  # what refers to itself adds nothing to itself
        before = self._num_cut
        self._open.add(place)
        try:
            found = self._read(self._schemas[place])
        finally:
            self._open.discard(place)
        if self._num_cut == before or not self._open:
            self._forms[place] = found
        return found

    def _read(self, schema: Mapping[str, Any]) -> tuple[Form, ...]:
        self._check_id(schema)
        found = own_forms(schema, self.child)
        parts = [self.of(self.target(schema[key])) for key in REFERENCES if key in schema]
        parts += [self.of(one) for one in members(schema, "allOf")]
        if "anyOf" in schema:
            parts.append(joined(*(self.of(one) for one in members(schema, "anyOf"))))
        if "oneOf" in schema:
            parts.append(self._one_of(members(schema, "oneOf")))
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            if not isinstance(values, list):
                raise SchemaRefused("enum must be a list of values")
            parts.append(self.values(values))
            if "enum" in schema and "const" in schema:
                parts.append(self.values([schema["const"]]))
        if "not" in schema:
            parts.append(negated(self, schema["not"], "not"))
        if "if" in schema and ("then" in schema or "else" in schema):
            yes = self.meeting.all(self.of(schema["if"]), self.of(schema.get("then", True)))
            no = self.meeting.all(negated(self, schema["if"], "if"), self.of(schema.get("else", True)))
            parts.append(joined(yes, no))
        parts += [self.of(one) for one in _dependent(schema)]
        if "propertyNames" in schema:
            parts.append(self._named(schema["propertyNames"]))
        for part in parts:
            found = self.meeting.all(found, part)
        return found

    def _check_id(self, schema: Mapping[str, Any]) -> None:
        """Refuse a schema within the schema whose references start from itself, since it has an address."""
        name = schema.get("$id", "#")
        if schema is self._root or not isinstance(name, str) or name.startswith("#"):
            return
        if any(isinstance(one, dict) and not one.keys().isdisjoint(REFERENCES) for _, one in nested(schema)):
            raise SchemaRefused(f"$id {_quoted(name)} inside a schema with references cannot be followed: leave it out")

    def _named(self, schema: Any) -> tuple[Form, ...]:
        """Return what propertyNames allows."""
        every = tuple(one for one in ANY if not isinstance(one, Object))
        allowed = [one for one in self.of(schema) if isinstance(one, Text)]
        if allowed == [Text()]:
            return ANY
        if not allowed:
            return (*every, Object(most=0))
        if all(one.values is not None and not one.patterns and not one.formats for one in allowed):
            listed = {name: () for one in allowed for name in one.values or ()}
            return (*every, Object(named=dict[str, Child | None](listed), others=None))
        if len(allowed) > 1 or allowed[0].values is not None or allowed[0].formats or allowed[0].others:
            raise SchemaRefused(
                "propertyNames is enforced as one enum, or as pattern, minLength and maxLength: use these"
            )
        return (*every, Object(names=(allowed[0],)))

    def values(self, values: Sequence[Any]) -> tuple[Form, ...]:
        """Return the forms of so many constants. It raises as `forms` does."""
        texts = tuple(dict.fromkeys(one for one in values if isinstance(one, str)))
        found: list[Form] = [Text(values=texts)] if texts else []
        for value in values:
            if isinstance(value, str):
                continue
            if value is None or isinstance(value, bool):
                found.append(Constant(json.dumps(value)))
            elif isinstance(value, (int, float)):
                number = exact(value, "enum or const")
                found.append(Number(number, number))
            elif isinstance(value, list):
                items = [self.child({"const": one}) or () for one in value]
                found.append(Array(len(items), len(items), tuple(items), None))
            else:
                named = {name: self.child({"const": one}) for name, one in value.items()}
                found.append(Object(named=named, required=frozenset(named), others=None))
        return joined(found)

    def _one_of(self, schemas: Sequence[Any]) -> tuple[Form, ...]:
        each = [self.of(one) for one in schemas]
        found = []
        for place, forms in enumerate(each):
            for other, schema in enumerate(schemas):
                if other != place and not self.are_apart(each[place], each[other]):
                    forms = self.meeting.all(forms, negated(self, schema, "oneOf"))
            found.append(forms)
        return joined(*found)

    def are_apart(self, some: Sequence[Form], others: Sequence[Form]) -> bool:
        """Return whether no value is surely in both."""
        both = (self.meeting.both(one, other) for one in some for other in others)
        return all(one is None or self._is_never(one, _DEPTH) for one in both)

    def _is_never(self, form: Form, depth: int) -> bool:
        """Return whether no value is surely of a form."""
        if isinstance(form, Text) and form.values is not None:
            return not any(all(matches(pattern, value) for pattern in form.patterns) for value in form.values)
        if not depth:
            return False
        inner = list[Child | None]()
        if isinstance(form, Object):
            inner = [self.meeting.property(form, name) for name in form.required]
        elif isinstance(form, Array):
            inner = [form.item(place) for place in range(min(form.least, len(form.first) + 1))]
        return any(all(self._is_never(one, depth - 1) for one in self.forms(child)) for child in inner)

    def target(self, reference: Any) -> Any:
        """Return the schema that a reference points to.

        Raises:
            SchemaRefused: It points out of the schema, or to nothing.
        """
        if not isinstance(reference, str):
            raise SchemaRefused("$ref must be a text")
        if reference in self._by_anchor:
            return self._by_anchor[reference]
        document, _, pointer = reference.partition("#")
        if document and document not in self._by_anchor:
            raise SchemaRefused(
                f"$ref {_quoted(reference)} is in another document: put it into this schema, under $defs"
            )
        value: Any = self._by_anchor.get(document, self._root)
        for step in unquote(pointer).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            elif isinstance(value, dict) and step in value:
                value = value[step]
            else:
                raise SchemaRefused(f"$ref {_quoted(reference)} points to nothing in the schema")
        if pointer and not pointer.startswith("/"):
            raise SchemaRefused(f"$ref {_quoted(reference)} points to nothing in the schema")
        return value


def joined(*several: Sequence[Form]) -> tuple[Form, ...]:
    """Return several alternatives as one list, with all constant texts in one form."""
    found = dict[Form | int, Form]()
    texts = dict[str, None]()
    for one in (one for forms in several for one in forms):
        if isinstance(one, Text) and one == Text(values=one.values) and one.values is not None:
            texts |= dict.fromkeys(one.values)
        else:
            found.setdefault(id(one) if isinstance(one, Object) else one, one)
    constants: tuple[Form, ...] = (Text(values=tuple(texts)),) if texts else ()
    return (*constants, *found.values())


def _dependent(schema: Mapping[str, Any]) -> list[Any]:
    """Return schemas that say what `dependencies`, `dependentRequired` and `dependentSchemas` say."""
    found = list[Any]()
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        for name, needed in subschemas(schema, keyword).items():
            needed = {"required": names({"required": needed})} if isinstance(needed, list) else needed
            found.append({"anyOf": [{"properties": {name: False}}, {"required": [name], "allOf": [needed]}]})
    return found


def _anchors(root: Any) -> dict[str, Any]:
    """Return the schemas that have names, by the references to them. A name that is given twice is left out."""
    found, twice = dict[str, Any](), set[str]()
    for _, one in nested(root):
        if not isinstance(one, dict):
            continue
        for keyword, before in (("$id", ""), ("id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
            if isinstance(name := one.get(keyword), str) and name.strip("#"):
                reference = f"{before}{name.rstrip('#')}"
                if found.setdefault(reference, one) is not one:
                    twice.add(reference)
    return {name: one for name, one in found.items() if name not in twice}


def _quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]} ..."
