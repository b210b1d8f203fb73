"""Translation of a pasted server command to kvsim's options.

Every flag of the servers of kvsim's engines is known (:mod:`kvsim.cli.server_flags`): kvsim models
it, ignores it with a note, or refuses it with the reason. Abbreviations, ``--flag=value`` and
dotted keys of JSON are read as by the servers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.deferred import PASTED
from kvsim.cli.server_flags import ServerFlag, flags_of
from kvsim.engines.registry import DEFAULT, all_engines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Engine by the words that start its server: a module, after ``python -m``, or two words.
LAUNCHERS = {
    tuple(line.split()): name for name, one in all_engines().items() for line in one.launchers
}
#: Values of servers that have another name in kvsim, by kvsim's flag.
VALUES = {
    "--kv-cache-dtype": {"fp8_e5m2": "fp8", "fp8_e4m3": "fp8"},
    "--backend": dict.fromkeys(("pytorch", "tensorrt", "trt", "_autodeploy"), "auto"),
    "--offload-group-size": {"-1": "0"},
    "--dtype": {"half": "float16", "float": "float32"},
    "--quantization": {
        **{"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "nvfp4"},
        **{"w8a8_fp8": "fp8", "w8a8_int8": "int8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8"},
        "gpt_oss_mxfp4": "mxfp4",
    },
}
#: Quantization methods that contain several formats; the model's name or config.json decides.
CONTAINERS = frozenset(
    ("compressed-tensors", "modelopt", "auto-round", "inc", "quark", "moe-wna16", "modelopt-mixed")
)
OF_THE_MODEL = "the model's name or its config.json decides how weights are stored"
#: Switches that some servers give with a number of ranks, and the further words for that number.
OVER_RANKS = {
    "--enable-expert-parallel": (),
    "--enable-dp-attention": ("--data-parallel-size", "{}"),
    "--dwdp-size": ("{}", "--enable-dp-attention", "--data-parallel-size", "{}"),
}
#: Modelled stores behind a server's host memory.
BACKENDS = ("mooncake", "file")
#: Modelled places of offloaded weights: host memory, with a copy per rank or one copy for all
#: ranks.
ON_THE_HOST = ("cpu", "shm_cpu")
#: LMCache's default host memory.
LMCACHE_GIB = "5"
#: Flags of the endpoint, which ``kvsim serve`` has, too.
OF_THE_ENDPOINT = frozenset(("--host", "--port", "--api-key", "--served-model-name"))
_PYTHON = re.compile(r"(\S*/)?python[\d.]*")
_ENVIRONMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_FLAG = re.compile(r"-{1,2}[A-Za-z]")
_LEVEL = re.compile(r"-O=?([0-3])")
_BOOLEANS = {"true": True, "false": False}


@dataclass
class Pasted:
    """A command line translated to kvsim's options, and its ignored flags.

    Parameters
    ----------
    words : the command and its arguments
    unused : flags without effect on memory, schedule and time
    timed : flags with an unknown effect on the time of steps
    assumed : by assumption of kvsim, the flags that contradict it
    """

    words: list[str]
    unused: list[str] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)
    assumed: dict[str, list[str]] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return notes on ignored flags, one of each kind."""
        notes = []
        if self.unused:
            notes.append(f"without effect in kvsim: {', '.join(self.unused)}")
        if self.timed:
            said = ", ".join(self.timed)
            notes.append(f"step times do not include the effect of {said}")
        if self.assumed:
            parts = (f"{about} ({', '.join(said)})" for about, said in self.assumed.items())
            notes.append(f"assumed although flags differ: {'; '.join(parts)}")
        return notes


def translate(arguments: Sequence[str], group: click.Group) -> Pasted:
    """Translate a command line to kvsim's options.

    Parameters
    ----------
    arguments : the command and its arguments
    group : the group of kvsim's commands

    Raises
    ------
    ValueError
        For a flag that is not modelled, and for an abbreviation of several flags.
    """
    if not arguments or arguments[0] not in PASTED:
        return Pasted(list(arguments))
    own = own_flags(group, arguments[0])
    server, words, skipped = _without_beginning(arguments[1:])
    engine = server or _engine(words)
    line = Pasted([arguments[0]], list(skipped))
    if server not in (None, DEFAULT):
        line.words += ["--engine", server] if "--engine" in own else _compared(server, words, own)
    _Reader(line, flags_of(engine), own).read(_with_objects(words))
    if server is not None and "--enable-dp-attention" in line.words:
        _per_rank(line.words)
    return line


def _per_rank(words: list[str]) -> None:
    """Divide the tensor-parallel size by the data-parallel size in ``words``. Mutates it."""
    sizes = {}
    for name in ("--tensor-parallel-size", "--data-parallel-size"):
        at = len(words) - 1 - words[::-1].index(name) if name in words else len(words)
        sizes[name] = (at, words[at + 1] if at + 1 < len(words) else "1")
    (at, gpus), (_, ranks) = sizes.values()
    if not (gpus.isdecimal() and ranks.isdecimal() and int(ranks)) or int(gpus) % int(ranks):
        raise ValueError(f"--enable-dp-attention: --tp-size {gpus} must be a multiple of --dp-size")
    if at < len(words):
        words[at + 1] = str(int(gpus) // int(ranks))


def own_flags(group: click.Group, name: str) -> dict[str, bool]:
    """Return the flags of a command of the group, and whether each takes a value."""
    command = group.get_command(click.Context(group), name)
    return {
        name: not option.is_flag and option.flag_value is None
        for option in (command.params if command else ())
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }


def _without_beginning(words: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """Return the engine, the words without its server's command, and the shell variables."""
    for index, word in enumerate(words):
        server, first, stop = LAUNCHERS.get(tuple(words[index : index + 2])), index, index + 2
        if server is None:
            server, stop = LAUNCHERS.get((word,)), index + 1
        if server is None:
            continue
        if first >= 2 and words[first - 1] == "-m" and _PYTHON.fullmatch(words[first - 2]):
            first -= 2
        before = list(words[:first])
        skipped: list[str] = []
        while before and _ENVIRONMENT.fullmatch(before[-1]) and not before[-1].startswith("-"):
            if len(before) > 1 and _FLAG.match(before[-2]):
                break  # a value
            skipped.insert(0, before.pop())
        return server, [*before, *words[stop:]], skipped
    return None, list(words), []


def _engine(words: Sequence[str]) -> str:
    """Return the engine that ``--engine`` names in a line without a server's command."""
    joined = " ".join(words)
    asked = re.search(r"(?:^| )--engine[ =](\S+)", joined)
    return asked[1] if asked is not None and asked[1] in all_engines() else DEFAULT


def _compared(server: str, words: Sequence[str], own: Mapping[str, bool]) -> list[str]:
    """Return flags of ``compare`` that compare the engine with vLLM, unless others are given."""
    told = any(word.partition("=")[0] in ("--engines", "--vary") for word in words)
    return ["--engines", f"{DEFAULT},{server}"] if "--engines" in own and not told else []


def _with_objects(words: Sequence[str]) -> list[str]:
    """Collect dotted keys as vLLM does: ``-cc.mode=none`` becomes a JSON object at the end."""
    plain: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        path, equals, text = word.partition("=")
        if not _FLAG.match(word) or "." not in path:
            plain.append(word)
            continue
        text = text if equals else next(rest, "")
        name, *keys = path.removesuffix("+").split(".")
        place = objects.setdefault(name, {})
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = text.split(",") if path.endswith("+") else _value(text)
    for name, values in objects.items():
        plain += [name, json.dumps(values)]
    return plain


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class _Reader:
    def __init__(
        self, line: Pasted, known: Mapping[str, ServerFlag], own: Mapping[str, bool]
    ) -> None:
        self.line = line
        self.known = known
        self.own = own
        #: By flag, the keys of its JSON object that have flags of their own.
        self.objects: dict[str, dict[str, Any]] = {}
        self.special = {
            "--optimization-level": self._level,
            "--compilation-config": self._compilation,
            "--cudagraph-capture-sizes": self._sizes,
            "--offload-mode": self._offload_mode,
        }

    def read(self, words: Sequence[str]) -> None:
        """Translate every word of the line."""
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if not _FLAG.match(word):
                self.line.words.append(word)
                continue
            if level := _LEVEL.fullmatch(word):
                self._level(level[1], word)
                continue
            name, equals, value = word.partition("=")
            name = self._whole(name.replace("_", "-") if name.startswith("--") else name)
            flag = self.known.get(name) or self._negated(name)
            if flag is None:
                taken = [] if equals or not self.own.get(name) else words[at : at + 1]
                at += len(taken)
                self.line.words += [f"{name}={value}" if equals else name, *taken]
            elif flag.takes == "switch":
                self._switch(flag, name, value, word)
            else:
                taken = [] if equals else _values(flag, words[at:])
                at += len(taken)
                self._valued(flag, name, [value] if equals else taken, " ".join([word, *taken]))
        for name, values in self.objects.items():
            self._object(name, values)

    def _object(self, name: str, values: dict[str, Any]) -> None:
        """Add keys to a JSON object, which may already be in the line."""
        words = self.line.words
        if name not in words:
            words += [name, json.dumps(values)]
            return
        at = words.index(name) + 1
        given = _value(words[at]) if at < len(words) else None
        if isinstance(given, dict):
            words[at] = json.dumps(given | values)

    def _whole(self, name: str) -> str:
        """Return the only flag that begins with ``name``, as argparse does."""
        if name in self.known or name in self.own or not name.startswith("--"):
            return name
        near = sorted(one for one in {*self.known, *self.own} if one.startswith(name))
        flags = {(flag.names[0] if (flag := self.known.get(one)) else one) for one in near}
        if len(flags) > 1 and name not in ("--", "--no-"):
            shown = ", ".join(near[:4]) + (", ..." if len(near) > 4 else "")
            raise ValueError(f"{name}: is ambiguous ({shown}); give the full name")
        return near[0] if flags else name

    def _negated(self, name: str) -> ServerFlag | None:
        """Return the switch that ``--no-...`` or ``--disable-...`` switches off."""
        if name in self.own:
            return None
        for start, instead in (("--no-", "--"), ("--disable-", "--enable-")):
            flag = (
                self.known.get(name.replace(start, instead, 1)) if name.startswith(start) else None
            )
            if flag is not None and flag.takes == "switch":
                return flag
        return None

    def _switch(self, flag: ServerFlag, name: str, value: str, said: str) -> None:
        state = (name in flag.names) == _BOOLEANS.get(value.lower(), True)
        if flag.does == "modelled":
            self._modelled_switch(flag, state, said)
        elif state == flag.is_on:
            self.line.unused.append(said)
        else:
            self._pass_over(flag, name, said)

    def _modelled_switch(self, flag: ServerFlag, state: bool, said: str) -> None:
        name = flag.own if state else f"--no-{flag.own[2:]}"
        if name in self.own:
            self.line.words.append(name)
        elif name.startswith("--no-") and "--" + name[5:] in self.own:
            self.line.words.append(f"--{name[5:]}=false")  # a sweep's switches take values
        else:
            self.line.unused.append(said)

    def _valued(self, flag: ServerFlag, name: str, values: Sequence[str], said: str) -> None:
        value = " ".join(values)
        if flag.does == "modelled":
            if not values:
                raise ValueError(f"{name} needs a value")
            self._modelled(flag, value, said)
        elif name in OF_THE_ENDPOINT and name in self.own:
            self.line.words += [word for one in values for word in (name, one)]
        elif name == "--tokenizer" and value.endswith(".json") and name in self.own:
            self.line.words += [name, value]  # kvsim's: a file; servers take a model's name
        elif values and flag.is_default(value):
            self.line.unused.append(said)
        else:
            self._pass_over(flag, name, said)

    def _pass_over(self, flag: ServerFlag, name: str, said: str) -> None:
        if flag.does == "refused":
            allowed = f" ({' or '.join(flag.defaults)} is the default)" if flag.defaults else ""
            raise ValueError(f"{name} is not modelled: {flag.about}{allowed}")
        if flag.does == "assumed":
            self.line.assumed.setdefault(flag.about, []).append(said)
        elif flag.does == "time":
            self.line.timed.append(said)
        else:
            self.line.unused.append(said)

    def _modelled(self, flag: ServerFlag, value: str, said: str) -> None:
        name, _, key = flag.own.partition(".")
        if key and name in self.own:
            self.objects.setdefault(name, {})[key] = _value(value)
        elif name in self.special:
            self.special[name](value, said)
        elif name in OVER_RANKS:
            words = [name, *(word.format(value) for word in OVER_RANKS[name])]
            self.line.words += [] if flag.is_default(value) or value == "1" else words
        elif name not in self.own:
            self.line.unused.append(said)
        else:
            self._own(flag, name, value, said)

    def _own(self, flag: ServerFlag, name: str, value: str, said: str) -> None:
        if name == "--kv-transfer-config" and _is_lmcache(value) and "--kv-store" in self.own:
            self._lmcache(said)
        elif name == "--kv-store" and value not in BACKENDS:
            raise ValueError(
                f"{flag.names[0]} {value} is not modelled: the store evicts and reads by rules of "
                f"its own; {' and '.join(BACKENDS)} are"
            )
        elif name == "--quantization" and value.replace("_", "-") in CONTAINERS:
            self.line.assumed.setdefault(OF_THE_MODEL, []).append(said)
        else:
            self.line.words += [name, VALUES.get(name, {}).get(value, value)]

    def _lmcache(self, said: str) -> None:
        """Add the KV store that models LMCache; an environment variable may set its size."""
        size = LMCACHE_GIB
        for one in self.line.unused:
            variable, _, value = one.partition("=")
            size = value if variable == "LMCACHE_MAX_LOCAL_CPU_SIZE" else size
        self.line.words += ["--kv-store", f"lmcache+gib={size}"]
        about = f"LMCache keeps chunks of 256 tokens in {size} GiB of host memory"
        self.line.assumed.setdefault(about, []).append(said)

    def _level(self, level: str, said: str) -> None:
        name = "--optimization-level"
        if name in self.own and level.isdecimal():
            self.line.words += [name, level]
        else:
            self.line.unused.append(said)

    def _compilation(self, text: str, said: str) -> None:
        """Read the keys of CUDA graphs from vLLM's JSON; the other keys concern kernels."""
        values = _value(text)
        if isinstance(values, int):  # the level of older versions, where 3 is today's 2
            self._level(str(min(values, 2)), said)
            return
        if not isinstance(values, dict):
            raise ValueError(f"--compilation-config {text}: must be a JSON object")
        if "--compilation-config" not in self.own:
            self.line.unused.append(said)
            return
        kept = {key: value for key, value in values.items() if "cudagraph" in key}
        if kept:
            self.line.words += ["--compilation-config", json.dumps(kept)]
        self.line.timed += [f"--compilation-config.{key}" for key in values if key not in kept]

    def _offload_mode(self, mode: str, said: str) -> None:
        if mode not in ON_THE_HOST:
            raise ValueError(
                f"--offload-mode {mode} is not modelled: weights would be in the memory of other "
                f"GPUs; {' and '.join(ON_THE_HOST)} are"
            )
        self.line.unused.append(said)

    def _sizes(self, sizes: str, said: str) -> None:
        """Write the sizes of CUDA graphs as one list, which a sweep takes as one value."""
        name = "--cudagraph-capture-sizes"
        if name in self.own:
            listed = re.split(r"[,\s]+", sizes.strip(" []"))
            self.line.words += [name, f"[{','.join(listed)}]"]
        else:
            self.line.unused.append(said)


def _is_lmcache(text: str) -> bool:
    """Return True if a connector's JSON names LMCache inside the engine, without its own server."""
    given = _value(text)
    return isinstance(given, dict) and given.get("kv_connector") == "LMCacheConnectorV1"


def _values(flag: ServerFlag, rest: Sequence[str]) -> list[str]:
    """Return the following words that belong to a flag."""
    if flag.takes == "value":
        return list(rest[:1])
    taken: list[str] = []
    for word in rest:
        if _FLAG.match(word):
            break
        taken.append(word)
    return taken
