"""Define the text messages that the page sends. They are JSON objects, told apart by their `type`."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from whet.errors import RequestError
from whet.models.diffusion.guidance import Kind

_Text = Annotated[str, Field(max_length=4000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Start(_Strict):
    """Begin a stream. It is the first message of a connection.

    Attributes:
        source: Where frames come from: the browser's "camera", or the "server", which plays its own source.
        key: The API key, where the server asks for one.
    """

    type: Literal["start"]
    source: Literal["camera", "server"]
    key: Annotated[str, Field(max_length=1000)] = ""


class PromptChange(_Strict):
    """Set the prompt, and in `negative` what the output should not be."""

    type: Literal["prompt"]
    prompt: _Text
    negative: _Text = ""


class GuidanceChange(_Strict):
    """Set how the output follows the prompt. `delta` is the factor of the anchor's noise in residual guidance."""

    type: Literal["guidance"]
    kind: Kind
    weight: Annotated[float, Field(allow_inf_nan=False)]
    delta: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class Shown(_Strict):
    """Say that one more answer was shown. The server sends no more than a few that were not."""

    type: Literal["shown"]


Message = Start | PromptChange | GuidanceChange | Shown

_MESSAGES: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def parse_text(text: str) -> Message:
    """Return the message in a text.

    Raises:
        RequestError: It is no such message.
    """
    try:
        return _MESSAGES.validate_json(text)
    except (ValidationError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        place = ".".join(map(str, first["loc"])) or "message"
        raise RequestError(f"the server does not understand the page's {place}: {first['msg']}") from error
