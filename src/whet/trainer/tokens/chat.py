"""Turn conversations, and prompts with their completions, into text of which a model learns the answers alone.

The text is that of the tokenizer's own chat template, or of whet's plain one. It comes in segments, each of which is
learnt or not, and each is encoded by itself, so that no token lies half in an answer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.errors import RequestError, TargetError

# As the plain template of `whet serve`, with an end of text behind each answer, at which a server stops.
DEFAULT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "Assistant:{% generation %} {{ message['content'] }}{{ eos_token }}{% endgeneration %}{{ '\n' }}"
    "{% else %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}{{ '\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
MESSAGES, PROMPT, COMPLETION = "messages", "prompt", "completion"


class Segment(NamedTuple):
    """Hold a piece of text, and whether a model is to learn it."""

    text: str
    is_trained: bool


def segments_of(template: ChatTemplate, messages: object, tools: object = None) -> list[Segment]:
    """Return the text of a conversation in segments.

    A template that marks answers as `generation` says what is learnt. Otherwise it is what the template adds for a
    message of the assistant to a prompt for it, without white space behind a last special token.

    Args:
        messages: A list of objects with "role" and "content".
        tools: A list of tools that the template may show, or None.

    Raises:
        TargetError: These are no messages, or the template does not take them, or shows an answer otherwise where more
            messages follow.
    """
    checked = _checked(messages)
    if tools is not None and not isinstance(tools, list):
        raise TargetError(f"tools are a list; got {type(tools).__name__}")
    try:
        if template.marks_answers:
            found = [Segment(text, learnt) for text, learnt in template.segments(checked, tools)]
        else:
            found = _by_prefixes(template, checked, tools)
    except RequestError as error:
        raise TargetError(str(error)) from error
    return _joined(found)


def completion_segments(template: ChatTemplate, prompt: object, completion: object) -> list[Segment]:
    """Return a prompt and its completion in segments. Both are texts, or both are lists of messages.

    Raises:
        TargetError: They are neither.
    """
    if isinstance(prompt, str) and isinstance(completion, str):
        return [one for one in (Segment(prompt, False), Segment(completion, True)) if one.text]
    if isinstance(prompt, list) and isinstance(completion, list):
        return segments_of(template, prompt + completion)
    raise TargetError(f"{PROMPT} and {COMPLETION} are two texts, or two lists of messages")


def _checked(messages: object) -> list[dict[str, Any]]:
    """Return messages if they have the form of a conversation."""
    if not isinstance(messages, list) or not messages:
        raise TargetError('a conversation is a list of messages: [{"role": "user", "content": "..."}, ...]')
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            keys = ", ".join(map(str, message)) if isinstance(message, dict) else type(message).__name__
            raise TargetError(f"message {number} needs role and content; it has: {keys}")
    return messages


def _by_prefixes(template: ChatTemplate, messages: Sequence[dict[str, Any]], tools: Any) -> list[Segment]:
    """Find answers by rendering the conversation up to each of them, and with each of them."""

    def rendered(count: int, *, asks: bool) -> str:
        return template.render(messages[:count], add_generation_prompt=asks, variables={}, tools=tools)

    whole, begin, found = rendered(len(messages), asks=False), 0, []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = rendered(number, asks=True), rendered(number + 1, asks=False)
        if not (after.startswith(before) and whole.startswith(after)):
            raise TargetError(
                f"the chat template shows message {number} otherwise where more messages follow, or than it asks for "
                "it: put {% generation %} and {% endgeneration %} in the template around what is to be learnt"
            )
        trimmed = after.rstrip()
        ends_specially = any(trimmed.endswith(token) for token in template.special_tokens.values() if token)
        end = len(trimmed) if ends_specially and len(trimmed) > len(before) else len(after)
        found += [Segment(whole[begin : len(before)], False), Segment(whole[len(before) : end], True)]
        begin = end
    return [*found, Segment(whole[begin:], False)]


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    """Join neighbours of one kind, and leave out empty ones."""
    found: list[Segment] = []
    for segment in segments:
        if found and found[-1].is_trained == segment.is_trained:
            found[-1] = Segment(found[-1].text + segment.text, segment.is_trained)
        elif segment.text:
            found.append(segment)
    return found
