"""Small tokenizers of the families whose tool calls are read, with their chat templates and marks."""

import json
from dataclasses import dataclass
from pathlib import Path

from whet.server.text import Tokenizer
from whet.workloads import WEIGHTS

_TOOLS = "{% if tools %}TOOLS{% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}"
_MESSAGES = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}MARK{{ call.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
)


@dataclass(frozen=True)
class Family:
    """name: of the format. special: marks that are special tokens. plain: marks that are one token of text."""

    name: str
    mark: str
    special: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()

    def write(self, directory: Path) -> Tokenizer:
        """Write the tokenizer of docs-gpt with this family's marks and template. Returns it."""
        source = WEIGHTS / "docs-gpt"
        described = json.loads((source / "tokenizer.json").read_text())
        first = len(described["model"]["vocab"])
        for number, text in enumerate((*self.special, *self.plain)):
            described["added_tokens"].append(
                {
                    "id": first + number,
                    "content": text,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": text in self.special,
                }
            )
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "tokenizer.json").write_text(json.dumps(described))
        settings = json.loads((source / "tokenizer_config.json").read_text())
        settings["chat_template"] = _TOOLS + _MESSAGES.replace("MARK", self.mark)
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        (directory / "generation_config.json").write_text((source / "generation_config.json").read_text())
        return Tokenizer(directory)


FAMILIES = (
    Family("hermes", "<tool_call>", plain=("<tool_call>", "</tool_call>")),
    Family("hermes", "<tool_call>", special=("<tool_call>", "</tool_call>")),
    Family("llama3_json", "<|python_tag|>", special=("<|python_tag|>",)),
    Family("mistral", "[TOOL_CALLS]", special=("[TOOL_CALLS]",)),
    Family("granite", "<|tool_call|>", special=("<|tool_call|>",)),
    Family("jamba", "<tool_calls>", plain=("<tool_calls>", "</tool_calls>")),
    Family("phi4_mini_json", "functools"),
)
