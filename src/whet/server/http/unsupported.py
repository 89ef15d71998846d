"""List the parameters of OpenAI's API, vLLM, llama.cpp and SGLang that this server knows and does not support.

Parameters in whet.server.http.protocol are supported. Those in IGNORED are ignored. All others here are refused by
name, unless their value changes nothing (their neutral values). A parameter that is in none of these lists is ignored.

Sources: platform.openai.com/docs/api-reference (completions, chat); docs.vllm.ai, "OpenAI-Compatible Server" and
"Sampling Parameters"; llama.cpp's tools/server/README.md; docs.sglang.ai, "Sampling Parameters".
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

Neutral = Mapping[str, tuple[object, ...]]  # from a parameter to the values, besides null, that change nothing

# These concern accounting, speed, or the form of an answer. The generated tokens are the same with and without them.
IGNORED = frozenset(
    """
    cache_prompt guided_decoding_backend id_slot include_reasoning metadata prediction prompt_cache_key
    prompt_cache_retention reasoning_effort reasoning_format request_id safety_identifier separate_reasoning
    service_tier store user verbosity
    """.split()
)


def _each(names: str, *neutral: object) -> Neutral:
    return dict.fromkeys(names.split(), neutral)


EVERYWHERE: Neutral = {
    **_each(
        """
        allowed_token_ids custom_logit_processor grammar_lazy grammar_triggers kv_transfer_params lora_path n_predict
        prompt_embeds prompt_logprobs repetition_detection structural_tag thinking_token_budget truncate_prompt_tokens
        truncation_side vllm_xargs
        """,
    ),
    **_each("bad_words logits_processors logprob_token_ids lora response_fields samplers stop_regex", []),
    **_each(
        """
        dry_multiplier dynatemp_range min_new_tokens mirostat n_indent n_keep n_probs priority t_max_predict_ms
        xtc_probability
        """,
        0,
    ),
    **_each("length_penalty repeat_penalty typical_p", 1),
    "top_n_sigma": (-1, 0),
    **_each(
        """
        include_stop_str_in_output no_stop_trim post_sampling_probs return_hidden_states return_token_ids
        return_tokens return_tokens_as_token_ids timings_per_token use_beam_search
        """,
        False,
    ),
    **_each("skip_special_tokens spaces_between_special_tokens", True),
}
_CHAT_TEMPLATE: Neutral = {
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
}
CHAT: Neutral = {
    **EVERYWHERE,
    **_CHAT_TEMPLATE,
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "state": (),
    "suffix": ("",),
    "web_search_options": (),
}
COMPLETION: Neutral = {
    **EVERYWHERE,
    "max_completion_tokens": (),
    "tools": ([],),
    "top_logprobs": (),
}
TOKENIZE: Neutral = _CHAT_TEMPLATE

_INSTEAD = {
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "repeat_penalty": "repetition_penalty",
    "top_logprobs": "logprobs",
}


def check_supported(fields: object, refused: Neutral) -> None:
    """Check that no field of a body, or of a part of one, asks for something that this server does not support.

    Raises:
        PydanticCustomError: A field does. The error's type is the name of the field.
    """
    if not isinstance(fields, dict):
        return
    for name in refused.keys() & fields.keys():
        value = fields[name]
        if value is None or any(_is_same(value, neutral) for neutral in refused[name]):
            continue
        hint = f"use {_INSTEAD[name]}" if name in _INSTEAD else "leave it out"
        raise PydanticCustomError(name, f"{name}: this server does not support it; {hint}")


def as_schema(refused: Neutral) -> dict[str, Any]:
    """Return the JSON schema's properties for refused parameters. Only null and the neutral values are allowed."""
    return {
        name: {"enum": [None, *neutral], "description": "not supported by this server"}
        for name, neutral in sorted(refused.items())
    }


def _is_same(value: object, neutral: object) -> bool:
    """Return whether two values are equal as JSON: 1 equals 1.0, but not true."""
    return isinstance(value, bool) is isinstance(neutral, bool) and value == neutral
