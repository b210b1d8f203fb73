"""The HTTP server: vLLM's endpoints over a live engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from kvsim.engines.registry import DEFAULT
from kvsim.serve.failing import HEADER, Failing, hang_up
from kvsim.serve.limits import MOST_BODY, take_body, wait_while_read
from kvsim.serve.messages import (
    DEFAULT_TOKENS,
    MOST_PROMPTS,
    Asked,
    Chat,
    Common,
    Completion,
    Detokenize,
    Refused,
    Tokenize,
    chat_text,
    positive,
    read,
)
from kvsim.serve.metrics import metrics_text
from kvsim.serve.streams import FAILED, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kvsim.serve.live import Live
    from kvsim.serve.tokens import Tokenizer

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: Maximum number of samples of a prompt (``n``).
MOST_SAMPLES = 1024
VERSION = "0.33.0"
JSON = "application/json"
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)
#: Key for the moment at which the body of a request was complete.
ARRIVED = web.RequestKey("arrived", float)


class Server:
    """The HTTP endpoints of one engine.

    Parameters
    ----------
    names : names of the model; answers have the name that the request gave, or else the first
    facts : block size, number of blocks and other settings, for dashboards and routers
    """

    def __init__(
        self,
        live: Live,
        tokenizer: Tokenizer,
        names: list[str],
        facts: dict[str, Any],
        *,
        api_key: str | None = None,
    ) -> None:
        self.live, self.tokenizer, self.names, self.facts = live, tokenizer, names, facts
        self.api_key = api_key
        self.failing = Failing(live)

    @property
    def lives(self) -> list[Live]:
        """The engines behind this port."""
        return [self.live]

    @property
    def num_open(self) -> int:
        """Answers in progress on all engines."""
        return sum(one.num_open for one in self.lives)

    def app(self) -> web.Application:
        """Return the application, which runs the engine while it is up."""
        app = web.Application(client_max_size=MOST_BODY, middlewares=[self._answer_errors])
        app.cleanup_ctx.append(self._run_engine)
        routes: dict[str, dict[str, Handler]] = {
            "GET": {
                "/v1/models": self.models,
                "/health": self.health,
                "/ping": self.health,
                "/version": self.version,
                "/metrics": self.metrics,
                "/load": self.load,
                "/get_server_info": self.server_info,
                "/server_info": self.server_info,
                "/is_sleeping": self.is_sleeping,
                "/kv_event_sources": self.event_sources,
            },
            "POST": {
                "/v1/completions": self.completions,
                "/v1/chat/completions": self.chat,
                "/v1/completions/render": self.render_completion,
                "/v1/chat/completions/render": self.render_chat,
                "/tokenize": self.tokenize,
                "/detokenize": self.detokenize,
                "/reset_prefix_cache": self.reset_prefix_cache,
                "/sleep": self.sleep,
                "/wake_up": self.wake_up,
                "/v1/load_lora_adapter": self.load_adapter,
                "/v1/unload_lora_adapter": self.unload_adapter,
                "/ping": self.health,
            },
        }
        if self.facts["engine"] != DEFAULT:
            for method in routes.values():
                method["/flush_cache"] = self.flush_cache
        for path, handler in routes["GET"].items():
            app.router.add_get(path, handler)  # HEAD, too
        for path, handler in routes["POST"].items():
            app.router.add_post(path, handler)
        return app

    async def _run_engine(self, app: web.Application) -> AsyncIterator[None]:
        publisher = self.live.publisher
        tasks = [asyncio.create_task(self.live.run())]
        self.failing.begin()
        if publisher is not None:
            tasks.append(asyncio.create_task(publisher.answer_replays()))
        yield
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if publisher is not None:
            publisher.close()

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.failing.is_down:
            hang_up()
        try:
            self._check_key(request)
            await take_body(request)
            request[ARRIVED] = time.monotonic()
            return await handler(request)
        except Refused as found:
            refused = found
        except web.HTTPRequestEntityTooLarge:
            refused = Refused(f"the body is larger than {MOST_BODY} bytes", 413)
        except web.HTTPException as found:
            refused = Refused(f"{request.method} {request.path}: {found.reason}", found.status)
        return web.Response(body=refused.body, status=refused.status, content_type=JSON)

    def _check_key(self, request: web.Request) -> None:
        if self.api_key is None or not request.path.startswith("/v1"):
            return
        if request.headers.get("Authorization") != f"Bearer {self.api_key}":
            raise Refused("the API key is missing or wrong", 401)

    def close(self) -> None:
        """End the record of the run."""
        self.live.close()

    # -- completions -----------------------------------------------------------------------------

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body: Completion = read(await request.read(), Completion)
        self._check(body)
        prompts = self._prompts(body)
        most = positive("max_tokens", body.max_tokens, 2**31 - 1) or DEFAULT_TOKENS
        echoes = tuple(map(self.tokenizer.decode, prompts)) if body.echo else ()
        return await self._serve(request, Asked(body, prompts, most, False, echoes))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body: Chat = read(await request.read(), Chat)
        self._check(body)
        given = body.max_completion_tokens or body.max_tokens
        most = positive("max_tokens", given, 2**31 - 1)
        return await self._serve(request, Asked(body, [self._conversation(body)], most, True))

    def _check(self, body: Common) -> None:
        if self.live.is_asleep:
            raise Refused("the engine is asleep; send POST /wake_up first", 503)
        if self.failing.is_down:  # only requests from the router get here
            raise Refused("the replica has failed; try again later", 503)
        self._check_model(body.model)
        positive("n", body.n, MOST_SAMPLES)
        if self.live.handover is None and any((body.kv_transfer_params or {}).values()):
            raise Refused(
                "kv_transfer_params: this replica has no KV connector; must be null, or start "
                "kvsim serve with a fleet file of prefill and decode pools",
                param="kv_transfer_params",
            )

    def _check_model(self, model: str | None) -> None:
        if model is not None and model not in self.names and model not in self.live.adapters:
            raise Refused(f"The model `{model}` does not exist.", 404, "model")

    def _prompts(self, body: Completion) -> list[list[int]]:
        given = body.prompt
        if isinstance(given, str):
            prompts = [self.tokenizer.encode(given)]
        elif given and isinstance(given[0], int):
            prompts = [[one for one in given if isinstance(one, int)]]
        else:
            prompts = [
                self.tokenizer.encode(one) if isinstance(one, str) else one
                for one in given
                if not isinstance(one, int)
            ]
        if isinstance(given, list) and len({type(one) for one in given}) > 1:
            raise Refused(
                "prompt: must be one text, a list of texts, of token ids, or of lists of token ids",
                param="prompt",
            )
        if not prompts or not all(prompts):
            raise Refused("prompt: must have at least one token", param="prompt")
        if len(prompts) > MOST_PROMPTS:
            raise Refused(
                f"prompt: has {len(prompts)} prompts, must have at most {MOST_PROMPTS}",
                param="prompt",
            )
        return prompts

    def _conversation(self, body: Chat) -> list[int]:
        if not body.messages:
            raise Refused("messages: must have at least one message", param="messages")
        return self.tokenizer.encode(chat_text(body.messages))

    async def _serve(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        """Let the engine serve a request, and abort it if the client disconnects."""
        reply = Reply(
            asked.common.model or self.names[0],
            asked.is_chat,
            asked.common,
            sum(map(len, asked.prompts)),
            request_id=request.headers.get("X-Request-Id", ""),
            arrived=request[ARRIVED],
        )
        self.failing.obey(request.headers.get(HEADER))
        ids = self.live.submit(asked, reply)
        headers = {"X-Request-Id": reply.request_id.partition("-")[2]}
        try:
            with self.failing.answering():
                if not asked.common.stream:
                    await reply.ended.wait()
                    if reply.has_failed:
                        raise Refused(*FAILED)
                    return web.Response(body=reply.body, content_type=JSON, headers=headers)
                return await self._stream(request, reply, headers)
        except (asyncio.CancelledError, ConnectionError):
            self.live.abort(ids)
            raise

    async def _stream(
        self, request: web.Request, reply: Reply, headers: dict[str, str]
    ) -> web.StreamResponse:
        """Stream an answer; each step of the engine writes its tokens to the connection."""
        response = web.StreamResponse(headers=headers)
        response.content_type = "text/event-stream"
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has disconnected")
        reply.send = transport.write
        await wait_while_read(reply.ended, transport)
        await response.write_eof()
        return response

    # -- texts and tokens ------------------------------------------------------------------------

    async def tokenize(self, request: web.Request) -> web.Response:
        body: Tokenize = read(await request.read(), Tokenize)
        self._check_model(body.model)
        if body.prompt is None and body.messages is None:
            raise Refused("prompt, messages: one of the two is needed", param="prompt")
        text = body.prompt if body.messages is None else chat_text(body.messages)
        ids = self.tokenizer.encode(text or "")
        return answer(
            {
                "count": len(ids),
                "max_model_len": self.live.longest,
                "tokens": ids,
                "token_strs": None,
            }
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        body: Detokenize = read(await request.read(), Detokenize)
        return answer({"prompt": self.tokenizer.decode(body.tokens)})

    async def render_completion(self, request: web.Request) -> web.Response:
        """Answer ``/v1/completions/render``: the tokens of each prompt."""
        body: Completion = read(await request.read(), Completion)
        self._check_model(body.model)
        return answer([self._rendered(body, ids) for ids in self._prompts(body)])

    async def render_chat(self, request: web.Request) -> web.Response:
        body: Chat = read(await request.read(), Chat)
        self._check_model(body.model)
        return answer(self._rendered(body, self._conversation(body)))

    def _rendered(self, body: Common, ids: list[int]) -> dict[str, Any]:
        return {
            "request_id": "",
            "token_ids": ids,
            "features": None,
            "sampling_params": {"max_tokens": body.max_tokens or DEFAULT_TOKENS},
            "model": body.model or self.names[0],
            "stream": bool(body.stream),
            "cache_salt": body.cache_salt,
            "priority": body.priority or 0,
            "kv_transfer_params": body.kv_transfer_params,
        }

    # -- the server ------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        """Answer that the server is up."""
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        """Answer with the version of vLLM that this protocol follows."""
        return answer({"version": VERSION})

    async def models(self, request: web.Request) -> web.Response:
        """Answer with the model, and its adapters."""
        found = [self._model(name, None) for name in self.names]
        found += [self._model(name, self.names[0]) for name in sorted(self.live.adapters)]
        return answer({"object": "list", "data": found})

    def _model(self, name: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": parent or name,
            "parent": parent,
            "max_model_len": self.live.longest,
            "permission": [],
        }

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with the metrics as Prometheus text."""
        kind = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        return web.Response(body=metrics_text(self.lives), headers=kind)

    async def load(self, request: web.Request) -> web.Response:
        """Answer with the number of requests that are not answered yet."""
        return answer({"server_load": self.num_open})

    async def server_info(self, request: web.Request) -> web.Response:
        """Answer with the settings, at the top level and as in vLLM's ``vllm_config``."""
        return answer(self.facts | {"vllm_config": self.facts, "vllm_env": {}, "system_env": {}})

    async def event_sources(self, request: web.Request) -> web.Response:
        """Answer where KV cache events are published, by rank."""
        publisher = self.live.publisher
        return answer({} if publisher is None else {"0": publisher.source})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """Empty the prefix cache; fails while a block is in use."""
        return answer({"success": self.live.reset_prefix_cache()})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Empty the prefix cache of each replica, or fail while a block is in use."""
        emptied = [one.reset_prefix_cache() for one in self.lives]
        return web.Response(text=FLUSHED, status=200 if all(emptied) else 400)

    async def sleep(self, request: web.Request) -> web.Response:
        """Refuse requests until the engine is woken, and empty its cache."""
        if self.num_open:
            raise Refused(f"{self.num_open} requests are running; try again later", 503)
        self.live.reset_prefix_cache()
        self.live.is_asleep = True
        return await self.health(request)

    async def wake_up(self, request: web.Request) -> web.Response:
        """Serve requests again."""
        self.live.is_asleep = False
        return await self.health(request)

    async def is_sleeping(self, request: web.Request) -> web.Response:
        """Answer whether the engine is asleep."""
        return answer({"is_sleeping": self.live.is_asleep})

    async def load_adapter(self, request: web.Request) -> web.Response:
        """Add the name of a LoRA adapter."""
        name, path = await self._adapter(request)
        if not self.facts.get("enable_lora"):
            raise Refused("the server was started without --enable-lora")
        self.live.load_adapter(name, path)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, request: web.Request) -> web.Response:
        """Remove the name of a LoRA adapter."""
        name, _ = await self._adapter(request)
        if name not in self.live.adapters:
            raise Refused(f"The lora adapter '{name}' cannot be found.", 404, "lora_name")
        self.live.adapters.discard(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _adapter(self, request: web.Request) -> tuple[str, str]:
        """Return the name and the path of the adapter that a request names."""
        body: dict[str, Any] = read(await request.read(), dict[str, Any])
        name = body.get("lora_name")
        if not isinstance(name, str) or not name:
            raise Refused("lora_name: must be the name of an adapter", param="lora_name")
        return name, str(body.get("lora_path", ""))


def answer(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=JSON)
