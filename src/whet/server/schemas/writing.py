"""Write the forms of a JSON schema as a grammar in llguidance's dialect of Lark.

Each child becomes a rule. Numbers, objects and lists are written here; texts with patterns and numbers with
multipleOf are left to llguidance's own JSON schemas, whose limits are known.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from whet.server.schemas.forms import Array, Child, Constant, Form, Number, Object, SchemaRefused, Text
from whet.server.schemas.numbers import as_schema, expression
from whet.server.schemas.objects import ObjectWriter
from whet.server.schemas.reading import Reader
from whet.server.schemas.rules import Rules
from whet.server.schemas.text_rules import literal, plain_text
from whet.server.schemas.unique import unique_items

_ESCAPES = 'nrbtf\\"'
_MOST_CHILDREN = 10_000


def grammar(schema: Any, whitespace: str) -> str:
    """Return the grammar of the JSON that is valid by a schema, given as json.loads returns it.

    `whitespace` is the regular expression of the whitespace between the parts of JSON; "" for none.

    Raises:
        SchemaRefused: It cannot be enforced.
    """
    reader = Reader(schema)
    try:
        text = Writer(reader, whitespace).text(reader.child(schema))
    except RecursionError:
        raise SchemaRefused("its references ($ref) and levels nest too deeply: write a smaller schema") from None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SchemaRefused("it holds half of a surrogate pair, which no text can have") from None
    return text


class Writer(Rules):
    """Write the rules of one schema."""

    def __init__(self, reader: Reader, whitespace: str) -> None:
        super().__init__(reader)
        self._whitespace = whitespace
        self._names = dict[Child, str]()
        self._waiting = list[Child]()
        self._possible = set[Child]()

    def text(self, root: Child | None) -> str:
        """Return the grammar of a child.

        Raises:
            SchemaRefused: It cannot be enforced.
        """
        self._possible = self._productive(root)
        if not self.can_be(root):
            raise SchemaRefused("no value is valid by it")
        assert root is not None
        head = []
        if self._whitespace:
            head = ['%llguidance {"ignore_once": true}', f"%ignore /{_slashed(self._whitespace)}/"]
        start = f"start: {self.value(root)}"
        while self._waiting:
            child = self._waiting.pop()
            self.rule(self._names[child], *self._alternatives(child))
        terminals = [f"{name}: {body}" for body, name in self._terminals.items()]
        return "\n".join([*head, start, *self._rules, *terminals])

    def value(self, child: Child) -> str:
        if child not in self._names:
            self._names[child] = f"v{len(self._names)}"
            self._waiting.append(child)
        return self._names[child]

    def can_be(self, child: Child | None) -> bool:
        return child is not None and child in self._possible

    def allow(self, child: Child | None) -> bool:
        if child is not None and any(self._is_possible(form, self._possible) for form in self.reader.forms(child)):
            self._possible.add(child)
        return self.can_be(child)

    def alternative(self, form: Form) -> str:
        if isinstance(form, Constant):
            return literal(form.text)
        if isinstance(form, Number):
            found = expression(form)
            return f"/{found}/" if found is not None else self._by_llguidance(as_schema(form))
        if isinstance(form, Text):
            return self.texts([form])
        if isinstance(form, Object):
            return ObjectWriter(self, form).body()
        return self._array(form)

    def texts(self, forms: Sequence[Text]) -> str:
        bodies, others = list[str](), list[dict[str, object]]()
        for form in forms:
            patterns = sorted(one for one in form.patterns if one)
            if not patterns and not form.formats:
                bodies.append(self.terminal(plain_text(form)))
                continue
            if form.others:
                raise SchemaRefused("a text that has a pattern or a format and must not be some constants: use an enum")
            schema: dict[str, object] = {"type": "string", "minLength": form.least}
            if form.most is not None:
                schema["maxLength"] = form.most
            if form.values is not None:
                schema = {"enum": list(form.values)}
            schema["allOf"] = [{"pattern": one} for one in patterns] + [{"format": one} for one in sorted(form.formats)]
            others.append(schema)
        if others:
            bodies.append(self._by_llguidance({"anyOf": others} if len(others) > 1 else others[0]))
        return " | ".join(bodies)

    def _alternatives(self, child: Child) -> Iterator[str]:
        forms = self.reader.forms(child)
        texts = [form for form in forms if isinstance(form, Text)]
        if texts:
            yield self.texts(texts)
        for form in forms:
            if not isinstance(form, Text) and self._is_possible(form, self._possible):
                yield self.alternative(form)

    def _by_llguidance(self, schema: dict[str, object]) -> str:
        options: dict[str, object] = {"json_allowed_escapes": _ESCAPES}
        options |= {"whitespace_pattern": self._whitespace} if self._whitespace else {"whitespace_flexible": False}
        return self.rule(self.fresh("j"), f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def _array(self, form: Array) -> str:
        first = list[Child]()
        most = form.most
        for child in form.first:
            if not self.can_be(child):
                most = len(first) if most is None else min(most, len(first))
                break
            first.append(child)
        others = form.others if self.can_be(form.others) else None
        if others is None:
            most = len(first) if most is None else min(most, len(first))
        if form.is_unique and (most is None or most > 1):
            return f'"[" {unique_items(self, form, first, others, most)} "]"'
        if not first:
            return f'"[" {self.repeated(others, form.least, most)} "]"'
        after = "" if others is None else _more(self.value(others), form.least - len(first), most, len(first))
        for place in range(len(first) - 1, -1, -1):
            if most is not None and place >= most:
                continue
            comma = '"," ' if place else ""
            body = f"{comma}{self.value(first[place])} {after}"
            after = self.rule(self.fresh("a"), body if place < form.least else f"({body})?")
        return f'"[" {after} "]"'

    def repeated(self, child: Child | None, least: int, most: int | None) -> str:
        """Return the body of so many values of a child with commas between them."""
        if child is None or most == 0:
            return ""
        value = self.value(child)
        body = f"{value} {_more(value, max(0, least - 1), None if most is None else most - 1, 0)}"
        return body if least else f"({body})?"

    def _productive(self, root: Child | None) -> set[Child]:
        """Return the children that have values, of all that a child holds."""
        if root is None:
            return set()
        found, waiting = {root: self.reader.forms(root)}, [root]
        while waiting:
            for child in (one for form in found[waiting.pop()] for one in inner(form)):
                if child not in found:
                    found[child] = self.reader.forms(child)
                    waiting.append(child)
            if len(found) > _MOST_CHILDREN:
                raise SchemaRefused("its parts hold together in too many ways: write a smaller schema")
        possible = set[Child]()
        is_new = True
        while is_new:
            more = {
                child
                for child, forms in found.items()
                if child not in possible and any(self._is_possible(form, possible) for form in forms)
            }
            possible |= more
            is_new = bool(more)
        return possible

    def _is_possible(self, form: Form, possible: set[Child]) -> bool:
        if isinstance(form, Array):
            needed = [form.item(place) for place in range(min(form.least, len(form.first) + 1))]
            return all(child in possible for child in needed if child is not None) and None not in needed
        if isinstance(form, Object):
            if form.most is not None and max(form.least, len(form.required)) > form.most:
                return False
            children = [self.reader.meeting.property(form, name) for name in form.required]
            return all(child is not None and child in possible for child in children)
        return True


def inner(form: Form) -> Iterator[Child]:
    """Yield the children of a form."""
    children: list[Child | None] = []
    if isinstance(form, Array):
        children = [*form.first, form.others]
    elif isinstance(form, Object):
        children = [*form.named.values(), *(child for _, child in form.patterns), form.others]
    yield from (child for child in children if child is not None)


def _more(value: str, least: int, most: int | None, num_before: int) -> str:
    """Return the body of `least` or more further values, each after a comma.

    `most` (None for no bound) counts the `num_before` values before them too.
    """
    if most is None:
        return f'("," {value}){{{max(0, least)},}}'
    return f'("," {value}){{{max(0, least)},{most - num_before}}}' if most > num_before else ""


def _slashed(expression: str) -> str:
    return expression.replace("\\/", "/").replace("/", r"\/")
