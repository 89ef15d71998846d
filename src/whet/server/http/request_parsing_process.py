"""Read large bodies in a separate process. This module holds both its ends.

The process runs this module at a lower priority than the server. Messages are those of whet.server.isolated_process.
"""

import array
import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal

import psutil
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from whet.server.http.errors import ApiError, invalid, of_validation, unavailable
from whet.server.http.protocol import Sampling
from whet.server.http.request_parsing import KINDS, Prompts, Readers, Served
from whet.server.isolated_process import LENGTHS, command_of, packed, received
from whet.server.text import Tokenizer

_LONGEST_S = 60.0  # time limit of the answer to one message
_IDLE_S = 300.0  # an idle process ends after so long; the next large body starts another
_MOST_KEPT = 384 * 2**20  # a process that uses more bytes of memory than this ends after its body
_NICENESS = 10
_IDS: Literal["i"] = "i"  # the type code of token ids in an `array.array`: 32 bits


class ReadingProcess:
    """Read large bodies, one at a time. Use it on the event loop only. The process starts with the first body."""

    def __init__(self, models: Sequence[tuple[Tokenizer, Served]], artefacts: Sequence[str]) -> None:
        described = [{"directory": str(tokenizer.directory), **asdict(served)} for tokenizer, served in models]
        self._setup = {"models": described, "artefacts": list(artefacts)}
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._num_bytes = 0  # the memory of the process

    async def __aenter__(self) -> "ReadingProcess":
        """Wait until the bodies before this one are read. Leave the block once this one is."""
        await self._turn.acquire()
        if self._idle is not None:
            self._idle.cancel()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        is_known = kind is None or issubclass(kind, ApiError)  # else an answer may still be on its way
        if not is_known or self._num_bytes > _MOST_KEPT:
            self.cut()
        else:
            self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self.cut)
        self._turn.release()

    def cut(self) -> None:
        """Kill the process, if there is one. A body that is being read ends with an error."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process = None

    async def close(self) -> None:
        """Kill the process, and wait until it and its pipes are gone."""
        process = self._process
        self.cut()
        if self._idle is not None:
            self._idle.cancel()
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            await process.stdout.read()
            await process.wait()
            await asyncio.sleep(0)  # asyncio closes its ends of the pipes

    async def parse(self, kind: type[BaseModel], content: bytes, content_type: str) -> tuple[Any, int]:
        """Return a body as a `kind`, with a short placeholder for its prompts, and the number of prompts.

        Raises:
            ApiError: The body is wrong, or the process failed. The other methods raise it too.
        """
        head, _ = await self._ask({"do": "parse", "kind": kind.__name__, "content_type": content_type}, content)
        return kind.model_validate(head["fields"]), head["num_prompts"]

    async def prompts(self) -> Prompts:
        """Return the prompts of the body that was parsed."""
        head, content = await self._ask({"do": "prompts"})
        ids = memoryview(content).cast(_IDS)
        token_ids, first = [], 0
        for size in head["sizes"]:
            token_ids.append(ids[first : first + size].tolist())
            first += size
            await asyncio.sleep(0)
        return Prompts(token_ids, head["texts"])

    async def answer(self) -> bytes:
        """Return the answer to the parsed body of POST /tokenize or /detokenize, as JSON."""
        _, content = await self._ask({"do": "answer"})
        return content

    async def _ask(self, head: Mapping[str, object], content: bytes = b"") -> tuple[dict[str, Any], bytes]:
        try:
            async with asyncio.timeout(_LONGEST_S):
                process = await self._started()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(packed(head, content))
                await process.stdin.drain()
                head_size, content_size = LENGTHS.unpack(await process.stdout.readexactly(LENGTHS.size))
                answer = json.loads(await process.stdout.readexactly(head_size))
                answer_content = await process.stdout.readexactly(content_size)
        except TimeoutError:
            self.cut()
            raise unavailable(f"reading this request took longer than {_LONGEST_S:g} s; send a smaller one") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            self.cut()
            raise unavailable("the process that reads large requests has ended; send this one again") from error
        self._num_bytes = answer["num_bytes"]
        if "error" in answer:
            raise ApiError(**answer["error"])
        return answer, answer_content

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        pipe = asyncio.subprocess.PIPE
        words, variables = command_of(__name__)
        self._process = await asyncio.create_subprocess_exec(
            *words,
            stdin=pipe,
            stdout=pipe,
            env={**variables, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(packed(self._setup))
        return self._process


class _Answers:
    """Answer the server's messages inside the reading process. It keeps the body that was parsed last."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._read: Any = None  # the body, and the reader for its model

    def of(self, head: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the head and the content of the answer to a message, or raise ApiError."""
        if head["do"] == "parse":
            self._read = None
            self._read = body, _ = self._readers.parse(KINDS[head["kind"]], content, head["content_type"])
            return {"fields": _short(body), "num_prompts": len(getattr(body, "prompts", "1"))}, b""
        (body, reader), self._read = self._read, None
        if head["do"] == "answer":
            return {}, reader.answer(body)
        prompts = reader.prompts(body)
        ids = array.array(_IDS)
        for one in prompts.token_ids:
            ids.extend(one)
        return {"sizes": [len(one) for one in prompts.token_ids], "texts": prompts.texts}, ids.tobytes()


def _answered(answers: _Answers, head: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the head and the content of the answer to a message, which may be an error."""
    try:
        return answers.of(head, content)
    except ApiError as raised:
        error = raised
    except ValidationError as raised:
        error = of_validation(raised)
    except PydanticCustomError as raised:
        error = invalid(raised.message(), raised.type)
    said = {"status": error.status_code, "message": error.detail, "param": error.param, "code": error.code}
    return {"error": said}, b""


def _short(body: BaseModel) -> dict[str, Any]:
    """Return the fields of a body that the server needs. Long ones are replaced by short, valid placeholders."""
    if not isinstance(body, Sampling):
        return {"tokens": [], "prompt": ""}
    long = {"prompt", "messages", "chat_template_kwargs"}
    return {
        **body.model_dump(exclude=long, exclude_none=True, by_alias=True),
        "prompt": "",
        "messages": [{"role": "user"}],
    }


def main() -> None:
    """Answer messages on standard input until it is closed."""
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches this process too; the server ends it
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setup = received(source)
    if setup is None:
        return
    models = [(Tokenizer(one.pop("directory")), Served(**one)) for one in setup[0]["models"]]
    answers = _Answers(Readers(models, setup[0]["artefacts"]))
    while (message := received(source)) is not None:
        head, content = _answered(answers, *message)
        del message
        sink.write(packed({**head, "num_bytes": psutil.Process().memory_info().rss}, content))
        sink.flush()


if __name__ == "__main__":
    main()
