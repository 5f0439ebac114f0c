# SPDX-License-Identifier: Apache-2.0
"""
libkvplane from Python: an engine's session with its daemon, over ctypes.

Over ctypes and not over the link protocol itself: what keeps outputs right after a lost daemon (which
calls completed, what must be told of the last stay) is in the library, and is there once.

A `Session` is one rank of one instance, used by one thread at a time. The library starts no thread:
poll `fileno()`, call `process()`. What the daemon asks comes as methods of your `Engine`, inside
`process()`, `wait()` and `close()`; each call is answered once, now or later. An exception in one of
them answers the call with a failure and comes out of the `process()` that ran it.

The rule that keeps outputs right: take `token()` when a request STARTS computing, and give it with all
its lookups, gets and puts. kvplane.h has the whole of it.
"""

from __future__ import annotations

import ctypes
import enum
import fcntl
import math
import mmap
import os
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from .errors import Error


class Result(enum.IntEnum):
    """enum kvplane_result."""
    OK = 0
    INVALID = -1
    NOT_FOUND = -2
    EXISTS = -3
    TOO_LARGE = -4
    UNSUPPORTED = -5
    BAD_STATE = -6
    BUSY = -7
    FENCED = -10
    TICKET = -11
    GENERATION = -12
    CHECKSUM = -13
    CLOSED = -14
    AGAIN = -20
    NO_SPACE = -21
    QUOTA = -22
    TIMEOUT = -23
    CANCELED = -24
    PROTOCOL = -30
    DISCONNECTED = -31
    UNAVAILABLE = -32
    REFUSED = -33
    DRAINING = -34
    NO_MEMORY = -40
    IO = -41
    LIMIT = -42


class PauseMode(enum.IntEnum):
    ABORT = 0
    WAIT = 1
    KEEP = 2


class Role(enum.IntFlag):
    SCHEDULER = 1
    WORKER = 2
    BOTH = 3


class Memory(enum.IntEnum):
    HOST = 0
    CUDA = 1
    CUDA_FABRIC = 2


class Residency(enum.IntEnum):
    RESIDENT = 0
    OFFLOADED = 1
    DISCARDED = 2
    UNKNOWN = 3


class LinkError(Error):
    """A call that was not taken: nothing will complete. `result` is why."""

    def __init__(self, result: int, text: str) -> None:
        self.result = result
        super().__init__(text)


class Token(NamedTuple):
    """In which stay in a lineage something was computed."""
    hi: int = 0
    lo: int = 0


class Slice(NamedTuple):
    region: int
    offset: int
    len: int


@dataclass(frozen=True)
class Entry:
    """A block that is put or got: `slices` in the order in which its bytes lie in the store."""
    key: bytes
    slices: Sequence[Slice]
    placement: bytes | None = None
    group: int = 0
    part: int = 0


@dataclass(frozen=True)
class Keys:
    """Blocks of one KV group, in prefix order; `placements` as in their puts."""
    keys: Sequence[bytes]
    placements: Sequence[bytes | None] | None = None
    group: int = 0


@dataclass(frozen=True)
class Group:
    block_tokens: int
    window_tokens: int = 0


@dataclass
class State:
    """The engine's truth about itself."""
    paused: bool = False
    pause_mode: PauseMode = PauseMode.ABORT
    weight_change_running: bool = False
    weights_written: bool = False
    local_reset_done: bool = False
    tags: Mapping[str, Residency] = field(default_factory=dict)


TAGS_MAX = 8

F_ADD_SEALS = 1033  # fcntl has no names for them before Python 3.12
F_SEAL_SHRINK = 2


class _Token(ctypes.Structure):
    _fields_ = [("hi", ctypes.c_uint64), ("lo", ctypes.c_uint64)]


class _TagState(ctypes.Structure):
    _fields_ = [("tag", ctypes.c_char_p), ("residency", ctypes.c_int)]


class _State(ctypes.Structure):
    _fields_ = [("paused", ctypes.c_bool), ("pause_mode", ctypes.c_int), ("weight_change_running", ctypes.c_bool),
                ("weights_written", ctypes.c_bool), ("local_reset_done", ctypes.c_bool), ("ntags", ctypes.c_size_t),
                ("tags", _TagState * TAGS_MAX)]


_VOID = ctypes.c_void_p
_PAUSE = ctypes.CFUNCTYPE(None, _VOID, _VOID, ctypes.c_int)
_PLAIN = ctypes.CFUNCTYPE(None, _VOID, _VOID)
_RESET = ctypes.CFUNCTYPE(None, _VOID, _VOID, ctypes.c_bool)
_RELEASE = ctypes.CFUNCTYPE(None, _VOID, _VOID, ctypes.c_bool, ctypes.POINTER(ctypes.c_char_p),
                            ctypes.POINTER(ctypes.c_bool), ctypes.c_size_t)
_RESTORE = ctypes.CFUNCTYPE(None, _VOID, _VOID, ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t)
_RELAY = ctypes.CFUNCTYPE(None, _VOID, _VOID, ctypes.c_char_p, _VOID, ctypes.c_size_t)
_LINEAGE = ctypes.CFUNCTYPE(None, _VOID, ctypes.c_bool, ctypes.c_char_p)
_STATE_FN = ctypes.CFUNCTYPE(None, _VOID, ctypes.POINTER(_State))
_TOLD = ctypes.CFUNCTYPE(None, _VOID, ctypes.c_int)
_LOOKED_UP = ctypes.CFUNCTYPE(None, _VOID, ctypes.c_int, ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t)
_BATCH = ctypes.CFUNCTYPE(None, _VOID, ctypes.POINTER(ctypes.c_int), ctypes.c_size_t)


class _Callbacks(ctypes.Structure):
    _fields_ = [("pause", _PAUSE), ("resume", _PLAIN), ("reset_local", _RESET), ("release", _RELEASE), ("restore", _RESTORE),
                ("fingerprint", _PLAIN), ("relay", _RELAY), ("lineage", _LINEAGE), ("state", _STATE_FN),
                ("disconnected", _TOLD), ("attached", _TOLD)]


class _Group(ctypes.Structure):
    _fields_ = [("block_tokens", ctypes.c_uint32), ("window_tokens", ctypes.c_uint32)]


class _Options(ctypes.Structure):
    _fields_ = [("socket", ctypes.c_char_p), ("instance", ctypes.c_char_p), ("tenant", ctypes.c_char_p),
                ("layout", ctypes.c_char_p), ("model", ctypes.c_char_p), ("max_model_len", ctypes.c_uint32),
                ("weights_name", ctypes.c_char_p), ("roles", ctypes.c_uint), ("rank", ctypes.c_uint32),
                ("world_size", ctypes.c_uint32), ("local_world_size", ctypes.c_uint32), ("tp_size", ctypes.c_uint32),
                ("store_tp_size", ctypes.c_uint32), ("block_tokens", ctypes.c_uint32), ("groups", ctypes.POINTER(_Group)),
                ("ngroups", ctypes.c_size_t), ("tracks_lineage", ctypes.c_bool), ("queue_max", ctypes.c_size_t),
                ("callbacks", ctypes.POINTER(_Callbacks)), ("ctx", _VOID)]


class _Region(ctypes.Structure):
    _fields_ = [("region", ctypes.c_uint32), ("kind", ctypes.c_int), ("tag", ctypes.c_char_p),
                ("host_resident", ctypes.c_bool), ("fd", ctypes.c_int), ("fd_offset", ctypes.c_uint64),
                ("len", ctypes.c_uint64), ("generation", ctypes.c_uint64)]


class _Slice(ctypes.Structure):
    _fields_ = [("region", ctypes.c_uint32), ("offset", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class _Entry(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("key_len", ctypes.c_size_t), ("placement", ctypes.c_char_p),
                ("placement_len", ctypes.c_size_t), ("group", ctypes.c_uint32), ("part", ctypes.c_uint32), ("token", _Token),
                ("slices", ctypes.POINTER(_Slice)), ("nslices", ctypes.c_size_t)]


class _Key(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("len", ctypes.c_size_t), ("placement", ctypes.c_char_p),
                ("placement_len", ctypes.c_size_t)]


class _Keys(ctypes.Structure):
    _fields_ = [("group", ctypes.c_uint32), ("keys", ctypes.POINTER(_Key)), ("nkeys", ctypes.c_size_t)]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "kvplane_token": _Token, "kvplane_tag_state": _TagState, "kvplane_state": _State, "kvplane_callbacks": _Callbacks,
    "kvplane_group": _Group, "kvplane_options": _Options, "kvplane_region": _Region, "kvplane_slice": _Slice,
    "kvplane_entry": _Entry, "kvplane_key": _Key, "kvplane_keys": _Keys}
"""Of kvplane.h: a test holds their layout against the compiler's."""

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kvplane_strerror": (ctypes.c_char_p, [ctypes.c_int]),
    "kvplane_version": (ctypes.c_char_p, []),
    "kvplane_open": (ctypes.c_int, [ctypes.POINTER(_Options), ctypes.POINTER(_VOID)]),
    "kvplane_close": (None, [_VOID]),
    "kvplane_reattach": (ctypes.c_int, [_VOID]),
    "kvplane_detach": (ctypes.c_int, [_VOID]),
    "kvplane_fd": (ctypes.c_int, [_VOID]),
    "kvplane_process": (ctypes.c_int, [_VOID]),
    "kvplane_wait": (ctypes.c_int, [_VOID, ctypes.c_int]),
    "kvplane_attached": (ctypes.c_bool, [_VOID]),
    "kvplane_pending": (ctypes.c_size_t, [_VOID]),
    "kvplane_last_error": (ctypes.c_char_p, [_VOID]),
    "kvplane_get_token": (_Token, [_VOID]),
    "kvplane_register_region": (ctypes.c_int, [_VOID, ctypes.POINTER(_Region), _TOLD, _VOID]),
    "kvplane_placement": (ctypes.c_size_t, [ctypes.c_size_t, ctypes.c_uint32]),
    "kvplane_lookup": (ctypes.c_int, [_VOID, ctypes.c_uint64, _Token, ctypes.POINTER(_Keys), ctypes.c_size_t, _LOOKED_UP, _VOID]),
    "kvplane_discard": (ctypes.c_int, [_VOID, ctypes.c_uint64]),
    "kvplane_put": (ctypes.c_int, [_VOID, ctypes.POINTER(_Entry), ctypes.c_size_t, _BATCH, _VOID]),
    "kvplane_get": (ctypes.c_int, [_VOID, ctypes.c_uint64, _Token, ctypes.POINTER(_Entry), ctypes.c_size_t, _BATCH, _VOID]),
    "kvplane_report": (ctypes.c_int, [_VOID, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32]),
    "kvplane_leave": (ctypes.c_int, [_VOID, _TOLD, _VOID]),
    "kvplane_call_operation": (ctypes.c_uint64, [_VOID]),
    "kvplane_answer": (None, [_VOID, ctypes.c_int]),
    "kvplane_answer_reset": (None, [_VOID, ctypes.c_int, ctypes.c_uint32]),
    "kvplane_answer_text": (None, [_VOID, ctypes.c_int, ctypes.c_char_p]),
    "kvplane_answer_relay": (None, [_VOID, ctypes.c_int, ctypes.c_bool, ctypes.c_char_p, ctypes.c_size_t]),
}

SONAME = "libkvplane.so.0"


def library(path: str | None = None) -> ctypes.CDLL:
    """libkvplane: `path`, else $KVPLANE_LIBRARY, else the system's. Raises OSError where it is not."""
    try:
        loaded = ctypes.CDLL(path or os.environ.get("KVPLANE_LIBRARY") or SONAME)
    except OSError as error:
        raise OSError(f"{error}: libkvplane comes with kvplane (cmake --install); $KVPLANE_LIBRARY names it where it lies elsewhere") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class Call:
    """A call of the daemon. Answered once; a second answer is an error of the engine."""

    def __init__(self, session: Session, pointer: int) -> None:
        self._session = session
        self._pointer: int | None = pointer
        self.operation = int(session._lib.kvplane_call_operation(pointer))

    @property
    def answered(self) -> bool:
        return self._pointer is None

    def _take(self) -> int:
        if self._pointer is None:
            raise ValueError("this call was answered already, or its session is closed")
        pointer, self._pointer = self._pointer, None
        self._session._open_calls.discard(self)
        return pointer

    def answer(self, result: int = Result.OK) -> None:
        self._session._lib.kvplane_answer(self._take(), result)

    def answer_reset(self, result: int, blocks_held: int = 0) -> None:
        self._session._lib.kvplane_answer_reset(self._take(), result, blocks_held)

    def answer_text(self, text: str) -> None:
        self._session._lib.kvplane_answer_text(self._take(), Result.OK, text.encode())

    def answer_relay(self, result: int, json: bytes, *, weights_written: bool) -> None:
        self._session._lib.kvplane_answer_relay(self._take(), result, weights_written, json, len(json))


class Engine:
    """What the daemon asks of an engine; kvplane.h says what each has to hold. Answer each `call` once,
    now or later. What is not overridden answers that this engine has no such thing."""

    def state(self) -> State:
        raise NotImplementedError

    def pause(self, call: Call, mode: PauseMode) -> None:
        call.answer(Result.UNSUPPORTED)

    def resume(self, call: Call) -> None:
        call.answer(Result.UNSUPPORTED)

    def reset_local(self, call: Call, preempt: bool) -> None:
        call.answer(Result.UNSUPPORTED)

    def release(self, call: Call, commit: bool, offload: Mapping[str, bool]) -> None:
        """Of these tags; the value says whether it is to be copied aside."""
        call.answer(Result.UNSUPPORTED)

    def restore(self, call: Call, tags: Sequence[str]) -> None:
        call.answer(Result.UNSUPPORTED)

    fingerprint: Callable[[Call], None] | None = None
    """A method, where the engine has fingerprints. None: it has none, which the daemon is told."""

    def relay(self, call: Call, method: str, body: bytes) -> None:
        call.answer(Result.UNSUPPORTED)

    def lineage(self, left: bool, name: str) -> None:
        """Another lineage from now on."""

    def disconnected(self, reason: int) -> None:
        """Serve without a store; Session.reattach() when ready."""

    def attached(self, result: int) -> None:
        """Hand all regions over now."""


class HostMemory:
    """
    Memory of an engine that the daemon can be given: `length` bytes, zeros at first, mapped here for as long
    as anything refers to them. A region is its number, unique in the session.

        memory = HostMemory(blocks * block_bytes)
        kv = memory.tensor(torch.bfloat16, (blocks, 2, 16, 8, 128))
        session.hand_over(memory)               # in Engine.attached and Engine.restore
        Entry(key, [memory.slice(kv[7])])
        memory.discard()                        # in Engine.release, when `commit` is true

    Asleep, the addresses stay and the pages are given back: tensors are of zeros then, and may not be written.
    """

    def __init__(self, length: int, *, region: int = 0, tag: str = "kv_cache", host_resident: bool = False) -> None:
        if length <= 0:
            raise ValueError("memory of no bytes")
        self.length = length
        self.region = region
        self.tag = tag
        self.host_resident = host_resident
        self.generation = 0
        self.fd = os.memfd_create(f"kvplane-{tag}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, length)
            fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK)
            self.map = mmap.mmap(self.fd, length)
        except BaseException:
            os.close(self.fd)
            raise
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def tensor(self, dtype: Any, shape: Sequence[int], offset: int = 0) -> Any:
        """A torch tensor whose storage is this memory, from byte `offset`. Several may overlap."""
        import torch  # only who has tensors needs it

        count = math.prod(shape)
        if offset < 0 or count <= 0 or offset + count * torch.empty((), dtype=dtype).element_size() > self.length:
            raise ValueError(f"{tuple(shape)} of {dtype} at {offset} is not within {self.length} bytes")
        return torch.frombuffer(self.map, dtype=dtype, count=count, offset=offset).view(*shape)

    def slice(self, part: Any) -> Slice:
        """Where `part` lies: a tensor, or what has a buffer (a memoryview, an array). ValueError if it is
        not contiguous, or not in this memory: nothing else can be put or got."""
        if hasattr(part, "data_ptr"):
            if part.device.type != "cpu" or not part.is_contiguous():
                raise ValueError(f"a tensor of shape {tuple(part.shape)} on {part.device}, strides {part.stride()}: "
                                 "only a contiguous one on the CPU is one slice")
            address, length = part.data_ptr(), part.numel() * part.element_size()
        else:
            view = memoryview(part)
            if not view.contiguous or view.readonly:
                raise ValueError("only contiguous memory that can be written is one slice")
            length = view.nbytes
            address = ctypes.addressof(ctypes.c_char.from_buffer(view.cast("B"))) if length else 0
        offset = address - self.address
        if length == 0 or offset < 0 or offset + length > self.length:
            raise ValueError(f"these {length} bytes are not in region {self.region}: what is put or got has to lie in memory that "
                             "was handed over (HostMemory.tensor())")
        return Slice(self.region, offset, length)

    def discard(self) -> None:
        """Gives the pages back, contents and all; the addresses stay."""
        self.map.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Lets go of it. The mapping goes with the last tensor of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Session:
    """
    kvplane_open(): begins to attach, for as long as it takes; `Engine.attached` tells the end. Raises
    LinkError for options that are not allowed. Arguments are those of struct kvplane_options.
    """

    def __init__(self, engine: Engine, *, instance: str, layout: str, socket: str | None = None, tenant: str | None = None,
                 model: str | None = None, max_model_len: int = 0, weights_name: str | None = None, roles: Role = Role.BOTH,
                 rank: int = 0, world_size: int = 0, local_world_size: int = 0, tp_size: int = 0, store_tp_size: int = 0,
                 block_tokens: int = 0, groups: Sequence[Group] = (), tracks_lineage: bool = False, queue_max: int = 0,
                 lib: ctypes.CDLL | None = None) -> None:
        self._lib = lib if lib is not None else library()
        self._engine = engine
        self._handle = _VOID()
        self._failures: list[BaseException] = []
        self._inside = False  # of a call that runs callbacks
        self._open_calls: set[Call] = set()
        self._open: dict[int, Callable[..., None]] = {}  # of calls that have not completed, by the number that is their arg
        self._last = 0
        self._keep: list[Any] = []  # what C holds a pointer to
        self._callbacks = self._make_callbacks()
        self._on_done = _TOLD(lambda arg, result: self._complete(arg, result))
        self._on_lookup = _LOOKED_UP(lambda arg, result, hits, n: self._complete(arg, result, [hits[i] for i in range(n)]))
        self._on_batch = _BATCH(lambda arg, results, n: self._complete(arg, [results[i] for i in range(n)]))
        c_groups = (_Group * max(1, len(groups)))(*(_Group(one.block_tokens, one.window_tokens) for one in groups))
        options = _Options(
            socket=_text(socket), instance=_text(instance), tenant=_text(tenant), layout=_text(layout), model=_text(model),
            max_model_len=max_model_len, weights_name=_text(weights_name), roles=int(roles), rank=rank, world_size=world_size,
            local_world_size=local_world_size, tp_size=tp_size, store_tp_size=store_tp_size, block_tokens=block_tokens,
            groups=c_groups, ngroups=len(groups), tracks_lineage=tracks_lineage, queue_max=queue_max,
            callbacks=ctypes.pointer(self._callbacks))
        result = self._lib.kvplane_open(ctypes.byref(options), ctypes.byref(self._handle))
        if result != Result.OK:
            raise LinkError(result, self._lib.kvplane_last_error(None).decode() or self.strerror(result))

    # ---- the session

    def strerror(self, result: int) -> str:
        return str(self._lib.kvplane_strerror(result).decode())

    def fileno(self) -> int:
        return int(self._lib.kvplane_fd(self._alive()))

    def process(self) -> bool:
        """Reads, writes, runs what is due; never blocks. False: there is no connection (reattach())."""
        return self._ran(lambda: self._lib.kvplane_process(self._alive()))

    def wait(self, timeout_s: float | None = None) -> bool:
        """As process(), once there is something to do or `timeout_s` has passed."""
        bound_ms = -1 if timeout_s is None else max(0, int(timeout_s * 1000))
        return self._ran(lambda: self._lib.kvplane_wait(self._alive(), bound_ms))

    def attached(self) -> bool:
        return bool(self._lib.kvplane_attached(self._alive()))

    def pending(self) -> int:
        """Calls that have not completed."""
        return int(self._lib.kvplane_pending(self._alive()))

    def last_error(self) -> str:
        return str(self._lib.kvplane_last_error(self._alive()).decode())

    def reattach(self) -> None:
        self._check(self._lib.kvplane_reattach(self._alive()))

    def detach(self) -> None:
        """Ends the session in order: `Engine.disconnected` with CANCELED tells that the daemon holds nothing of
        this engine's memory any more. Then reattach()."""
        self._check(self._lib.kvplane_detach(self._alive()))

    def close(self) -> None:
        """Open calls complete with CANCELED. Let gets complete first, or unmap their memory. Not from a
        method of the Engine, nor from a `done`."""
        if self._inside:
            raise ValueError("the session cannot be closed by what it calls")
        if self._handle:
            self._inside = True
            self._lib.kvplane_close(self._handle)
            self._inside = False
            self._handle = _VOID()
            for call in self._open_calls:
                call._pointer = None
            self._open_calls.clear()
        self._raise()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- blocks

    def token(self) -> Token:
        now = self._lib.kvplane_get_token(self._alive())
        return Token(now.hi, now.lo)

    def placement(self, block: int, block_tokens: int) -> int:
        return int(self._lib.kvplane_placement(block, block_tokens))

    def register_region(self, region: int, fd: int, length: int, *, generation: int, tag: str = "kv_cache",
                        kind: Memory = Memory.HOST, offset: int = 0, host_resident: bool = False,
                        done: Callable[[int], None] | None = None) -> None:
        """Hands memory over, which `fd` names and the caller still owns."""
        told = _Region(region, int(kind), tag.encode(), host_resident, fd, offset, length, generation)
        self._begin(done or _nothing, lambda arg: self._lib.kvplane_register_region(
            self._alive(), ctypes.byref(told), self._on_done, arg))

    def hand_over(self, memory: HostMemory, done: Callable[[int], None] | None = None) -> None:
        """All of `memory`, anew under a higher generation: in Engine.attached, and in Engine.restore before it answers."""
        memory.generation += 1
        self.register_region(memory.region, memory.fd, memory.length, generation=memory.generation, tag=memory.tag,
                             host_resident=memory.host_resident, done=done)

    def lookup(self, request: int, token: Token, groups: Sequence[Keys], done: Callable[[int, list[int]], None]) -> None:
        """done(result, hits): how many blocks of each group are in the longest prefix that all can use."""
        c_groups = (_Keys * max(1, len(groups)))()
        keep = []
        for at, group in enumerate(groups):
            places = group.placements or [None] * len(group.keys)
            if len(places) != len(group.keys):
                raise ValueError("as many placements as keys, or none")
            keys = (_Key * max(1, len(group.keys)))(*(
                _Key(key, len(key), place, len(place or b"")) for key, place in zip(group.keys, places)))
            keep.append(keys)
            c_groups[at] = _Keys(group.group, keys, len(group.keys))
        self._begin(done, lambda arg: self._lib.kvplane_lookup(
            self._alive(), request, _Token(*token), c_groups, len(groups), self._on_lookup, arg))

    def discard(self, request: int) -> None:
        """Lets go of what a lookup holds for this request."""
        self._check(self._lib.kvplane_discard(self._alive(), request))

    def put(self, entries: Sequence[tuple[Entry, Token]], done: Callable[[list[int]], None] | None = None) -> None:
        """Each with the token under which it was computed. Their memory belongs to the put until `done`."""
        c_entries, keep = _entries(entries)
        self._begin(done or _nothing, lambda arg: self._lib.kvplane_put(
            self._alive(), c_entries, len(entries), self._on_batch, arg))
        del keep

    def get(self, request: int, token: Token, entries: Sequence[Entry], done: Callable[[list[int]], None]) -> None:
        """Anything but OK is a block to compute; its bytes are undefined."""
        c_entries, keep = _entries([(entry, Token()) for entry in entries])
        self._begin(done, lambda arg: self._lib.kvplane_get(
            self._alive(), request, _Token(*token), c_entries, len(entries), self._on_batch, arg))
        del keep

    def leave(self, done: Callable[[int], None] | None = None) -> bool:
        """Leaves the lineage by the engine's own will: there is no token any more when this returns. True: `done`
        tells that the daemon has left, too. False: it is not attached, and hears of it when it is."""
        try:
            self._begin(done or _nothing, lambda arg: self._lib.kvplane_leave(self._alive(), self._on_done, arg))
        except LinkError as error:
            if error.result != Result.BAD_STATE:
                raise
            return False
        return True

    def report(self, *, running: int, waiting: int, loading: int = 0, blocks_held: int = 0) -> None:
        self._check(self._lib.kvplane_report(self._alive(), running, waiting, loading, blocks_held))

    # ---- inside

    def _alive(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the session is closed")
        return self._handle

    def _check(self, result: int) -> None:
        if result != Result.OK:
            raise LinkError(result, f"{self.strerror(result)}: {self.last_error()}".removesuffix(": "))

    def _raise(self) -> None:
        if self._failures:
            failure = self._failures[0]
            self._failures.clear()
            raise failure

    def _ran(self, run: Callable[[], Any]) -> bool:
        if self._inside:
            raise ValueError("process() and wait() are not for what they call")
        self._inside = True
        try:
            result = run()
        finally:
            self._inside = False
        self._raise()
        if result == Result.DISCONNECTED:
            return False
        if result != Result.TIMEOUT:
            self._check(result)
        return True

    def _begin(self, done: Callable[..., None], call: Callable[[int], Any]) -> None:
        self._last += 1
        number = self._last
        self._open[number] = done
        try:
            self._check(call(number))
        except BaseException:
            self._open.pop(number, None)
            raise

    def _complete(self, number: int, *outcome: Any) -> None:
        done = self._open.pop(number)
        self._guarded(lambda: done(*outcome))

    def _guarded(self, run: Callable[[], None], call: Call | None = None) -> None:
        """Nothing may be raised into C: it is kept, and a call that it left open is answered."""
        try:
            run()
        except BaseException as failure:  # noqa: BLE001  # pylint: disable=broad-exception-caught
            self._failures.append(failure)
            if call is not None and not call.answered:
                call.answer(Result.IO)

    def _asked(self, pointer: int, run: Callable[[Call], None]) -> None:
        call = Call(self, pointer)
        self._open_calls.add(call)
        self._guarded(lambda: run(call), call)

    def _make_callbacks(self) -> _Callbacks:
        engine = self._engine

        def relay(_ctx: int, pointer: int, method: bytes, body: int, length: int) -> None:
            text = ctypes.string_at(body, length) if length else b""
            self._asked(pointer, lambda call: engine.relay(call, method.decode(), text))

        def release(_ctx: int, pointer: int, commit: bool, tags: Any, offload: Any, n: int) -> None:
            wanted = {tags[i].decode(): bool(offload[i]) for i in range(n)}
            self._asked(pointer, lambda call: engine.release(call, commit, wanted))

        def restore(_ctx: int, pointer: int, tags: Any, n: int) -> None:
            wanted = [tags[i].decode() for i in range(n)]
            self._asked(pointer, lambda call: engine.restore(call, wanted))

        def state(_ctx: int, told: Any) -> None:
            # What an engine cannot tell is taken for the worst: nothing is shared on the strength of it.
            told.contents.weight_change_running = told.contents.weights_written = True
            self._guarded(lambda: self._fill(told.contents, engine.state()))

        fingerprint = engine.fingerprint
        named = _PLAIN(0) if fingerprint is None else _PLAIN(lambda _, call, ask=fingerprint: self._asked(call, ask))
        return _Callbacks(
            pause=_PAUSE(lambda _, call, mode: self._asked(call, lambda one: engine.pause(one, PauseMode(mode)))),
            resume=_PLAIN(lambda _, call: self._asked(call, engine.resume)),
            reset_local=_RESET(lambda _, call, preempt: self._asked(call, lambda one: engine.reset_local(one, preempt))),
            release=_RELEASE(release),
            restore=_RESTORE(restore),
            fingerprint=named,
            relay=_RELAY(relay),
            lineage=_LINEAGE(lambda _, left, name: self._guarded(lambda: engine.lineage(left, name.decode()))),
            state=_STATE_FN(state),
            disconnected=_TOLD(lambda _, reason: self._guarded(lambda: engine.disconnected(reason))),
            attached=_TOLD(lambda _, result: self._guarded(lambda: engine.attached(result))))

    def _fill(self, told: _State, state: State) -> None:
        if len(state.tags) > TAGS_MAX:
            raise ValueError(f"at most {TAGS_MAX} tags")
        tags = [(tag.encode(), int(residency)) for tag, residency in state.tags.items()]
        told.paused, told.pause_mode = state.paused, int(state.pause_mode)
        told.weight_change_running, told.weights_written = state.weight_change_running, state.weights_written
        told.local_reset_done = state.local_reset_done
        self._keep = [tag for tag, _ in tags]
        for at, (tag, residency) in enumerate(tags):
            told.tags[at] = _TagState(tag, residency)
        told.ntags = len(self._keep)


def _text(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _nothing(*_: Any) -> None:
    """For who does not want to know."""


def _entries(entries: Sequence[tuple[Entry, Token]]) -> tuple[Any, list[Any]]:
    """The C array, and what it points to."""
    made = (_Entry * max(1, len(entries)))()
    keep: list[Any] = []
    for at, (entry, token) in enumerate(entries):
        slices = (_Slice * max(1, len(entry.slices)))(*(_Slice(*one) for one in entry.slices))
        keep.append(slices)
        made[at] = _Entry(entry.key, len(entry.key), entry.placement, len(entry.placement or b""), entry.group, entry.part,
                          _Token(*token), slices, len(entry.slices))
    return made, keep
