"""A client of a running server, which reads its pages and times streamed completions."""

from __future__ import annotations

import http.client
import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Timeout in seconds: the longest time without a byte from the server.
PATIENCE = 600.0
OK = 200


class Answer(NamedTuple):
    """Tokens of a request, and its times at the client: sending, first and last token, seconds."""

    num_prompt_tokens: int
    num_output_tokens: int
    sent: float
    first: float
    last: float


class Client:
    """A connection to an OpenAI-compatible server that stays open between requests.

    Parameters
    ----------
    url : address of the server, with or without ``/v1``; OPENAI_API_KEY is sent as key, if set
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(self.url)
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        if parts.scheme not in kinds or not parts.hostname:
            raise ValueError(f"--collect {url}: must be an address such as http://localhost:8000")
        self._path = parts.path
        self._connection: http.client.HTTPConnection = kinds[parts.scheme](
            parts.hostname, parts.port, timeout=PATIENCE
        )
        self._headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            self._headers["Authorization"] = f"Bearer {key}"

    def page(self, path: str) -> str | None:
        """Return the text of a page, None if the server has no such page.

        Raises
        ------
        ValueError
            If no server answers.
        """
        answer = self._asked("GET", path)
        text = answer.read().decode("utf-8", "replace")
        return text if answer.status == OK else None

    def complete(self, model: str, prompt: Sequence[int], max_tokens: int) -> Answer:
        """Send token ids, and time the tokens of the answer.

        Raises
        ------
        ValueError
            If no server answers, the server refuses the request, or its answer has no usage.
        """
        options = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        text = json.dumps(body | options)
        sent = time.perf_counter()
        answer = self._asked("POST", "/v1/completions", text)
        if answer.status != OK:
            told = answer.read(500).decode("utf-8", "replace")
            raise ValueError(
                f"--collect {self.url}: a request was refused ({answer.status}): {told}"
            )
        times: list[float] = []
        usage: Mapping[str, Any] = {}
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            if b'"usage":{' in line or b'"usage": {' in line:
                found = json.loads(line[6:])
                usage = found["usage"]
                if not found["choices"]:
                    continue
            times.append(now)
        if not times or not usage:
            raise ValueError(
                f"--collect {self.url}: a stream has no tokens, or no usage at its end"
            )
        counts = usage["prompt_tokens"], usage["completion_tokens"]
        return Answer(*counts, sent, times[0], times[-1])

    def close(self) -> None:
        self._connection.close()

    def _asked(self, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
        try:
            self._connection.request(method, self._path + path, body, self._headers)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ValueError(f"--collect {self.url}: {path}: {why}") from None
