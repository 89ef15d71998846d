"""Set and remove keywords of a call, in the style in which its arguments are written."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from whet_audit.fixes.expressions import in_place_of, parse_expression

Whitespace = cst.BaseParenthesizableWhitespace
_NONE = cst.SimpleWhitespace("")
_SPACE = cst.SimpleWhitespace(" ")


def keyword_argument(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument of `call` with the keyword `name`."""
    return next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def set_keyword(call: cst.Call, name: str, value: str) -> cst.Call:
    """`call` with `name=value`: its value replaced, or put behind the arguments but before a closing `**kwargs`."""
    new = parse_expression(value)
    old = keyword_argument(call, name)
    if old is not None:
        arg = old.with_changes(value=in_place_of(old.value, new, old, touches_word=False))
        return call.with_changes(args=[arg if each is old else each for each in call.args])
    args = [_own_parentheses(arg) for arg in call.args]
    bare = cst.Arg(value=new, keyword=cst.Name(name), equal=_equal_sign(args))
    arg = bare.with_changes(value=in_place_of(cst.Name(name), new, bare, touches_word=False))
    call = call.with_changes(args=args)
    end = len(args)
    while end and args[end - 1].star == "**":
        end -= 1
    if not args:
        return _into_empty(call, arg)
    return _append(call, arg) if end == len(args) else _insert(call, end, arg)


def remove_keyword(call: cst.Call, name: str) -> cst.Call:
    """`call` without the keyword `name`, which it has; the comments beside it stay."""
    args = list(call.args)
    index = next(i for i, arg in enumerate(args) if arg.keyword is not None and arg.keyword.value == name)
    is_last = index == len(args) - 1
    removed = args.pop(index)
    before = _before(call, index)
    after = [removed.whitespace_after_arg]
    if isinstance(removed.comma, cst.Comma):
        after += [removed.comma.whitespace_before, removed.comma.whitespace_after]
    joined = _joined(before, after, is_last=is_last)
    if index == 0:
        return call.with_changes(args=args, whitespace_before_args=joined)
    previous = args[index - 1]
    if is_last and not isinstance(removed.comma, cst.Comma):
        gap = previous.comma.whitespace_before if isinstance(previous.comma, cst.Comma) else _NONE
        space = joined if gap.empty else _joined(gap, [joined], is_last=True)
        args[index - 1] = previous.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=space)
    else:
        args[index - 1] = _followed(previous, joined)
    return call.with_changes(args=args)


def _append(call: cst.Call, arg: cst.Arg) -> cst.Call:
    """Behind the last argument: on its own line where that one is, with a closing comma where that one has it."""
    args = list(call.args)
    last = args[-1]
    start = _before(call, len(args) - 1)
    has_comma = isinstance(last.comma, cst.Comma)
    closing = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else last.whitespace_after_arg
    if not has_comma:
        last = last.with_changes(whitespace_after_arg=_NONE)
    if isinstance(start, cst.ParenthesizedWhitespace):
        above = closing if isinstance(closing, cst.ParenthesizedWhitespace) else None
        args[-1] = _followed(last, _line_start(start, above))
        if above is not None:
            closing = above.with_changes(first_line=_plain(above.first_line), empty_lines=())
    else:
        args[-1] = _followed(last, _SPACE)
    if has_comma:
        arg = arg.with_changes(comma=cst.Comma(whitespace_after=closing))
    else:
        arg = arg.with_changes(whitespace_after_arg=closing)
    return call.with_changes(args=[*args, arg])


def _insert(call: cst.Call, index: int, arg: cst.Arg) -> cst.Call:
    """Before the argument at `index`; comment lines above that one stay above it."""
    args = list(call.args)
    start = _before(call, index)
    gap: Whitespace = _SPACE
    if isinstance(start, cst.ParenthesizedWhitespace):
        gap = start.with_changes(first_line=_plain(start.first_line))
        start = start.with_changes(empty_lines=())
    arg = arg.with_changes(comma=cst.Comma(whitespace_after=gap))
    if index == 0:
        return call.with_changes(args=[arg, *args], whitespace_before_args=start)
    args[index - 1] = _followed(args[index - 1], start)
    return call.with_changes(args=[*args[:index], arg, *args[index:]])


def _into_empty(call: cst.Call, arg: cst.Arg) -> cst.Call:
    space = call.whitespace_before_args
    if not isinstance(space, cst.ParenthesizedWhitespace) or not _has_comment(space):
        return call.with_changes(args=[arg], whitespace_before_args=_NONE)
    closing = space.with_changes(first_line=_plain(space.first_line), empty_lines=())
    indented = space.with_changes(last_line=cst.SimpleWhitespace(space.last_line.value + "    "))
    return call.with_changes(args=[arg.with_changes(whitespace_after_arg=closing)], whitespace_before_args=indented)


def _before(call: cst.Call, index: int) -> Whitespace:
    """The whitespace between the argument at `index` and the comma or parenthesis before it."""
    if index == 0:
        return call.whitespace_before_args
    comma = call.args[index - 1].comma
    assert isinstance(comma, cst.Comma)
    return comma.whitespace_after


def _followed(arg: cst.Arg, space: Whitespace) -> cst.Arg:
    """`arg` with a comma and then `space`; what stands before its comma stays."""
    comma = arg.comma if isinstance(arg.comma, cst.Comma) else cst.Comma()
    return arg.with_changes(comma=comma.with_changes(whitespace_after=space))


def _line_start(model: cst.ParenthesizedWhitespace, above: cst.ParenthesizedWhitespace | None) -> Whitespace:
    """A new line indented as after `model`, below the comments of `above`."""
    first = above.first_line if above is not None else _plain(model.first_line)
    return model.with_changes(first_line=first, empty_lines=above.empty_lines if above is not None else ())


def _joined(before: Whitespace, after: Sequence[Whitespace], *, is_last: bool) -> Whitespace:
    """What stands between an argument's neighbours once it is gone: the space before it, with all comments."""
    final = after[-1]
    if not any(_has_comment(space) for space in (before, *after)):
        return final if is_last else before
    pieces = [space for space in (before, *after) if isinstance(space, cst.ParenthesizedWhitespace)]
    first, *rest = pieces
    lines = list(first.empty_lines)
    for piece in rest:
        if piece.first_line.comment is not None:
            lines.append(
                cst.EmptyLine(indent=first.indent, whitespace=first.last_line, comment=piece.first_line.comment)
            )
        lines += piece.empty_lines
    closing = final if isinstance(final, cst.ParenthesizedWhitespace) else pieces[-1]
    return closing.with_changes(first_line=first.first_line, empty_lines=lines)


def _has_comment(space: Whitespace) -> bool:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return False
    return space.first_line.comment is not None or any(line.comment is not None for line in space.empty_lines)


def _plain(line: cst.TrailingWhitespace) -> cst.TrailingWhitespace:
    return cst.TrailingWhitespace(newline=line.newline)


def _own_parentheses(arg: cst.Arg) -> cst.Arg:
    """A generator may go without parentheses of its own only while it is the sole argument."""
    if isinstance(arg.value, cst.GeneratorExp) and not arg.value.lpar:
        value = arg.value.with_changes(lpar=(cst.LeftParen(),), rpar=(cst.RightParen(),))
        return arg.with_changes(value=value)
    return arg


def _equal_sign(args: Sequence[cst.Arg]) -> cst.AssignEqual:
    """As the other keywords of the call are written: k=v or k = v."""
    for arg in reversed(args):
        sign = arg.equal
        if isinstance(sign, cst.AssignEqual) and isinstance(sign.whitespace_before, cst.SimpleWhitespace):
            space = _SPACE if sign.whitespace_before.value == " " else _NONE
            return cst.AssignEqual(space, space)
    return cst.AssignEqual(_NONE, _NONE)
