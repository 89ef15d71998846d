"""Render the chat templates of checkpoints in a child process. This module holds both its ends.

A template is a program of a stranger: it may loop without end, or fill the memory. The child has little of both.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.errors import RequestError
from whet.server.isolated_process import ChildEnded, IsolatedProcesses, answer_messages

_CPU_S = 5.0  # for one conversation; templates of known models take milliseconds
_MORE_BYTES = 512 * 2**20  # of the child
_MOST_CHARACTERS = 16 * 2**20  # of one prompt
_NUM_CHILDREN = 2  # templates that are rendered at the same time


RENDERERS = IsolatedProcesses(__name__, _NUM_CHILDREN)


def rendered(template: ChatTemplate, variables: Mapping[str, object]) -> str:
    """Return what `ChatTemplate.render` makes of `variables`, its arguments, which are JSON. From any thread.

    Raises:
        RequestError: The template refuses the messages, fails, or takes too much time or memory.
    """
    try:
        answer = RENDERERS.ask({"template": template.text, "special": template.special_tokens, "given": variables})
    except ChildEnded as ended:
        limit = f"{_CPU_S:g} s" if ended.was_slow else f"{_MORE_BYTES // 2**20} MiB of memory"
        raise RequestError(
            f"the model's chat template takes more than {limit} on these messages: mend the template, or send fewer "
            "messages"
        ) from ended
    if "error" in answer:
        raise RequestError(answer["error"])
    return str(answer["text"])


@lru_cache(maxsize=8)
def _template(text: str, special: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(None, {"chat_template": text}, dict(special))


def _answer(message: Mapping[str, Any]) -> dict[str, object]:
    """Return a rendered conversation, or why there is none. It runs in the child."""
    try:
        text = _template(message["template"], tuple(message["special"].items())).render(**message["given"])
    except RequestError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "the model's chat template needs too much memory on these messages"}
    if len(text) > _MOST_CHARACTERS:
        return {"error": f"the model's chat template makes a prompt of more than {_MOST_CHARACTERS} characters"}
    return {"text": text}


if __name__ == "__main__":
    answer_messages(_answer, cpu_s=_CPU_S, more_bytes=_MORE_BYTES)
