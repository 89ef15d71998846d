"""Write the form of a JSON object as rules of a grammar. No name can come twice, however it is written."""

from whet.server.schemas.forms import Child, Object, SchemaRefused, Text
from whet.server.schemas.patterns import matches, whole
from whet.server.schemas.rules import Rules
from whet.server.schemas.text_rules import literal, plain_text, quoted

_RAW = r'/[^"\\\x00-\x1f\x7f]*/'  # names that follow a pattern have no character that JSON would escape
_MOST_COUNTED = 60_000


class ObjectWriter:
    """Write one object. Its properties come in the order of the schema, and others after them."""

    def __init__(self, writer: Rules, form: Object) -> None:
        self._writer, self._form = writer, form
        names = [*form.named, *sorted(form.required - form.named.keys())]
        children = {name: writer.reader.meeting.property(form, name) for name in names}
        self._named = {name: child for name, child in children.items() if writer.can_be(child) and self._is_name(name)}
        self._taken = names
        self._extra = self._extras()

    def body(self) -> str:
        """Return the body of a rule of the object.

        Raises:
            SchemaRefused: It cannot be written.
        """
        form = self._form
        most = form.most
        num_possible = len(self._named) + (_MOST_COUNTED if self._extra else 0)
        if most is not None and most >= num_possible:
            most = None
        if form.least > num_possible or not form.required <= self._named.keys():
            raise SchemaRefused("an object needs more properties than it may have")
        if most is None and form.least <= len(form.required):
            return f'"{{" {self._uncounted()} "}}"'
        if self._extra and form.least > len(form.required) + 1:
            raise SchemaRefused(
                f"minProperties {form.least} counts names that are free, and one name could come twice: require the "
                f"properties by name, or use at most {len(form.required) + 1}"
            )
        return f'"{{" {self._counted(form.least, most)} "}}"'

    def _is_name(self, name: str) -> bool:
        return all(
            one.least <= len(name) <= (len(name) if one.most is None else one.most)
            and all(matches(pattern, name) for pattern in one.patterns)
            for one in self._form.names
        )

    def _property(self, name: str) -> str:
        child = self._named[name]
        assert child is not None
        return f'{quoted(name)} ":" {self._writer.value(child)}'

    def _uncounted(self) -> str:
        """Return the body between the braces. Rules `t` follow a property, and others do not."""
        writer, extra = self._writer, self._extra
        after = f'("," {extra})*' if extra else ""
        before = f'({extra} ("," {extra})*)?' if extra else ""
        for name in reversed(self._named):
            here = self._property(name)
            is_required = name in self._form.required
            if is_required:
                before = f"{here} {after}"
                after = f'"," {here} {after}'
            else:
                before = writer.rule(writer.fresh("o"), f"{here} {after}", before or '""')
                after = f'("," {here})? {after}'
            if len(after) > 500 or not is_required:
                after = writer.rule(writer.fresh("t"), after)
        return before

    def _counted(self, least: int, most: int | None) -> str:
        """Return the body between the braces, with a parameter that counts the properties.

        A property may come where those that are required after it still fit, and may be left out where there are
        enough after it: nothing that began can end nowhere.
        """
        writer, extra = self._writer, self._extra
        after, before = writer.fresh("c"), writer.fresh("e")
        may_end, may_add = f"%if ge(_, {least})", "" if most is None else f"%if lt(_, {most})"
        writer.rule(f"{after}::_", f'"" {may_end}', *([f'"," {extra} {after}::incr(_) {may_add}'] if extra else ()))
        writer.rule(f"{before}::_", f'"" {may_end}', *([f"{extra} {after}::incr(_) {may_add}"] if extra else ()))
        num_required = 0
        for num_after, name in enumerate(reversed(self._named)):
            here, is_required = self._property(name), name in self._form.required
            skip = f"%if ge(_, {0 if extra else max(0, least - num_after)})"
            if most is not None:
                may_add = f"%if lt(_, {most - num_required})"
            new = {}
            for kind, comma, rest in (("c", '"," ', after), ("e", "", before)):
                skipped = [] if is_required else [f"{rest}::_ {skip}"]
                new[kind] = writer.fresh(kind)
                writer.rule(f"{new[kind]}::_", f"{comma}{here} {after}::incr(_) {may_add}", *skipped)
            before, after = new["e"], new["c"]
            num_required += is_required
        return f"{before}::0x0"

    def _extras(self) -> str:
        """Return the name of a rule of a property whose name is not in the schema; "" where there is none."""
        form, writer = self._form, self._writer
        alternatives = []
        for pattern, child in form.patterns:
            if child is not None and writer.can_be(child):
                # A name that matches two patterns is left out, unless both say the same of its value.
                different = tuple(other for other, same in form.patterns if same != child)
                alternatives.append(f'{self._key((pattern,), different)} ":" {writer.value(child)}')
        others: Child | None = form.others
        if others is not None and writer.can_be(others):
            alternatives.append(
                f'{self._key((), tuple(pattern for pattern, _ in form.patterns))} ":" {writer.value(others)}'
            )
        return writer.rule(writer.fresh("x"), *alternatives) if alternatives else ""

    def _key(self, patterns: tuple[str, ...], others: tuple[str, ...]) -> str:
        """Return the terminal of the names that match some patterns and none of others, and are not in the schema."""
        writer, names = self._writer, self._form.names
        if not patterns and not others and not names:
            return writer.terminal(plain_text(Text(others=frozenset(self._taken))))
        parts = [_RAW, *(f"/{whole(one)}/" for one in patterns), *(f"~/{whole(one)}/" for one in others)]
        for one in names:
            parts += [f"/{whole(pattern)}/" for pattern in sorted(one.patterns)]
            if one.least or one.most is not None:
                parts.append(f"/(?s:.{{{one.least},{'' if one.most is None else one.most}}})/")
        if self._taken:
            parts.append(f"~({' | '.join(literal(name) for name in self._taken if name) or quoted('')})")
            if "" in self._taken:
                parts.append("/(?s:.+)/")
        return writer.terminal(f'"\\"" {writer.terminal(" & ".join(parts))} "\\""')
