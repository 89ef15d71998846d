"""Write lists whose items differ, as rules with a bit for each kind of item that has come.

Where the items are few constants, each has a bit. Others are told apart by their beginning: no two texts start with
the same character, and no two numbers have the same sign, the same last digit before the point and as many digits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from whet.server.schemas.forms import (
    Array,
    Child,
    Constant,
    Form,
    Number,
    Object,
    SchemaRefused,
    Text,
    integers,
    together,
)
from whet.server.schemas.numbers import expression
from whet.server.schemas.rules import Rules
from whet.server.schemas.text_rules import literal, plain_text, quoted

_MOST_KINDS = 64  # bits of a parameter
_BEGINNINGS = [*"abcdefghijklmnopqrstuvwxyz", "A-H", "I-P", "Q-Z", "0-1", "2-3", "4-6", "7-9"]
_LETTERS = [f"{one}{one.upper()}" for one in "abcdefghijklmnopqrstuvwxyz"] + ["0-9"]
_SIZES = ("", "[1-9]", "[1-9][0-9]{1,97}")  # what stands before the last digit before the point
_CANNOT = "uniqueItems cannot be enforced for {}: leave it out, set maxItems to 1, or give the items {}"


def unique_items(writer: Rules, form: Array, first: Sequence[Child], others: Child | None, most: int | None) -> str:
    """Return the body of the items of a list, none of which equals another.

    Raises:
        SchemaRefused: They cannot be told apart.
    """
    if first:
        _check_apart(writer, [*first, *([others] if others is not None and most != len(first) else [])])
        if others is not None and (most is None or most > len(first) + 1):
            raise SchemaRefused(_CANNOT.format("items after prefixItems", "no prefixItems, or none after them"))
        body = writer.alternative(replace(form, most=most, is_unique=False))
        return body.removeprefix('"["').removesuffix('"]"')
    assert others is not None
    kinds = _constants(writer.reader.forms(others)) or list(_kinds(writer, writer.reader.forms(others)))
    if form.least > len(kinds):
        raise SchemaRefused(
            f"a list needs {form.least} different items, and {len(kinds)} are the most that can be told apart"
        )
    name, after = writer.fresh("u"), writer.fresh("n")
    may_end = f" %if bit_count_ge(_, {form.least})" if form.least > 1 else ""
    bound = "bit_clear({})" if most is None or most >= len(kinds) else f"and(bit_clear({{}}), bit_count_lt(_, {most}))"
    writer.rule(
        f"{after}::_",
        f'""{may_end}',
        *(f'"," {kind} {after}::set_bit({bit}) %if {bound.format(bit)}' for bit, kind in enumerate(kinds)),
    )
    empty = [] if form.least else ['""']
    writer.rule(f"{name}::_", *empty, *(f"{kind} {after}::set_bit({bit})" for bit, kind in enumerate(kinds)))
    return f"{name}::0x0"


def _check_apart(writer: Rules, children: Sequence[Child]) -> None:
    for place, one in enumerate(children):
        for other in children[place + 1 :]:
            if not writer.reader.are_apart(writer.reader.forms(one), writer.reader.forms(other)):
                raise SchemaRefused(_CANNOT.format("prefixItems that can be equal", "different constants"))


def _constants(forms: Sequence[Form]) -> list[str]:
    """Return the bodies of all values of forms; none where they are too many to be listed."""
    found = list[str]()
    for form in forms:
        if isinstance(form, Constant):
            found.append(literal(form.text))
        elif isinstance(form, Text) and form == Text(values=form.values) and form.values is not None:
            found += [quoted(value) for value in form.values]
        elif isinstance(form, Number) and form.multiple is None and form.low is not None and form.low == form.high:
            found.append(f"/{expression(form)}/")
        elif isinstance(form, Number) and form.is_integer and form.multiple is None and None not in integers(form):
            low, high = integers(form)
            assert low is not None
            assert high is not None
            if high - low >= _MOST_KINDS:
                return []
            found += [f"/{value}/" for value in range(low, high + 1)]
        else:
            return []
        if len(found) > _MOST_KINDS:
            return []
    return list(dict.fromkeys(found))


def _kinds(writer: Rules, forms: Sequence[Form]) -> Iterator[str]:
    """Yield the bodies of parts of the values, no two of which have a value in common."""
    for form in forms:
        if isinstance(form, Constant):
            yield literal(form.text)
    if texts := [form for form in forms if isinstance(form, Text)]:
        yield from _texts(writer, texts)
    numbers = [form for form in forms if isinstance(form, Number)]
    if any(form.multiple is not None or (expression(form) is None and not form.is_integer) for form in numbers):
        yield writer.alternative(numbers[0]) if len(numbers) == 1 else _refuse("such numbers", "an enum")
    elif numbers:
        yield from _numbers(writer, numbers)
    for kind in (Array, Object):
        some = [form for form in forms if isinstance(form, kind)]
        if some:
            yield from _objects(writer, some)
    if len(forms) > _MOST_KINDS:
        _refuse("so many alternatives", "an enum")


def _refuse(what: str, instead: str) -> str:
    raise SchemaRefused(_CANNOT.format(what, instead))


def _texts(writer: Rules, texts: Sequence[Text]) -> Iterator[str]:
    is_plain = not any(text.patterns or text.formats for text in texts)
    if any(text.values is not None or text.most == 0 for text in texts):
        _refuse("texts of which some are constants", "an enum")
    for beginning in _BEGINNINGS if is_plain else _LETTERS:
        if is_plain:
            yield writer.terminal(" | ".join(f'({plain_text(text)} & /"[{beginning}](?s:.*)/)' for text in texts))
        else:
            yield f"({writer.texts([replace(text, patterns=text.patterns | {f'^[{beginning}]'}) for text in texts])})"


def _numbers(writer: Rules, numbers: Sequence[Number]) -> Iterator[str]:
    for sign in ("", "-"):
        for size in _SIZES:
            for digit in range(10):
                if sign and not size and not digit:
                    continue  # -0 equals 0
                kind = rf"/{sign}{size}{digit}(\.[0-9]+)?/"
                some = [number for number in numbers if _has(number, sign, _SIZES.index(size), digit)]
                if some:
                    yield writer.terminal(" | ".join(f"(/{expression(number)}/ & {kind})" for number in some))


def _has(number: Number, sign: str, size: int, digit: int) -> bool:
    """Return whether a form has an integer of a sign, with a last digit, and of 1, 2, or more digits (size 0, 1, 2)."""
    low, high = integers(number)
    if sign:
        low, high = None if high is None else -high, None if low is None else -low
    low = max(10**size if size else 0, -1 if low is None else low)
    high = min(10 ** (size + 1) - 1 if size < len(_SIZES) - 1 else low + 9, low + 9 if high is None else high)
    return any(value % 10 == digit for value in range(low, min(high, low + 9) + 1))


def _objects(writer: Rules, forms: Sequence[Array | Object]) -> Iterator[str]:
    if len(forms) == 1 and isinstance(form := forms[0], Object):
        for name in form.named:
            child = writer.reader.meeting.property(form, name)
            if name in form.required and all(
                isinstance(one, Text) and one.values is None for one in writer.reader.forms(child)
            ):
                yield from _by_property(writer, form, name)
                return
    _refuse("lists and objects", "a required text that differs")


def _by_property(writer: Rules, form: Object, name: str) -> Iterator[str]:
    for beginning in _LETTERS:
        kind = writer.reader.child({"pattern": f"^[{beginning}]"})
        child = together(writer.reader.meeting.property(form, name), kind)
        if writer.allow(child):
            varied = replace(form, named={**form.named, name: child})
            yield writer.rule(writer.fresh("u"), writer.alternative(varied))
