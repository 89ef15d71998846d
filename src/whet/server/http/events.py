"""End streams of server-sent events, as OpenAI's API ends them.

Source: html.spec.whatwg.org, "Server-sent events"; platform.openai.com/docs/api-reference/chat-streaming.
"""

import json

from whet.server.http.errors import ApiError

EVENTS = "text/event-stream"
EVENT_END = b"\n\n"
DONE = b"data: [DONE]" + EVENT_END


def error_events(error: ApiError) -> bytes:
    """Return the events that end a stream which has begun and fails."""
    return b"data: " + json.dumps(error.content()).encode() + EVENT_END + DONE
