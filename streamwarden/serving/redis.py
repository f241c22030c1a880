"""A serving store in Redis, for readers on many machines."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from streamwarden.errors import StreamwardenError
from streamwarden.serving.store import Entry, Position, Served, ServingStore, StoreMoved, served

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RedisStore"]

_T = TypeVar("_T")

_MANY = 100
"""Keys a call: Redis does nothing else meanwhile, for about a millisecond. A thousand make one read in a hundred wait
for six."""

# The position of a call must be the one that its writer has set last; else nothing is written.
_CHECK = """
local now = redis.call('HMGET', KEYS[1], 'epoch', 'generation', 'batch', 'complete')
if now[1] ~= ARGV[1] or now[2] ~= ARGV[2] or now[3] ~= ARGV[3] or now[4] ~= ARGV[4] then return -1 end
"""

_WRITE = (
    _CHECK
    + """
local epoch, batch = tonumber(ARGV[5]), tonumber(ARGV[7])
local accepted = 0
for i = 2, #KEYS do
    local had = redis.call('HMGET', KEYS[i], 'e', 'b')
    local e, b = tonumber(had[1] or -1), tonumber(had[2] or -2)
    if e < epoch or (e == epoch and b <= batch) then
        local value = ARGV[i + 8]
        if value == '' then redis.call('HDEL', KEYS[i], 'v') else redis.call('HSET', KEYS[i], 'v', value) end
        redis.call('HSET', KEYS[i], 'e', ARGV[5], 'g', ARGV[6], 'b', ARGV[7], 'w', ARGV[8])
        if ARGV[9] ~= '' then redis.call('PEXPIREAT', KEYS[i], ARGV[9]) else redis.call('PERSIST', KEYS[i]) end
        accepted = accepted + 1
    end
end
return accepted
"""
)

_SET = "redis.call('HSET', KEYS[1], 'epoch', ARGV[5], 'generation', ARGV[6], 'batch', ARGV[7], 'complete', ARGV[8])"

_ADVANCE = _CHECK + _SET + " return 1"

_BEGIN = """
local now = redis.call('HGET', KEYS[1], 'epoch')
if now and tonumber(now) > tonumber(ARGV[1]) then return -1 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'generation', ARGV[2], 'batch', ARGV[3], 'complete', ARGV[4])
return 1
"""

_DROP = """
local had = redis.call('HMGET', KEYS[1], 'e', 'b')
local e, b = tonumber(had[1] or -1), tonumber(had[2] or -2)
if e < tonumber(ARGV[1]) or (e == tonumber(ARGV[1]) and b < tonumber(ARGV[2])) then
    return redis.call('DEL', KEYS[1])
end
return 0
"""


class RedisStore(ServingStore):
    """A hash for each key: value, generation, batch, watermark. Redis itself removes what has expired.

    Parameters
    ----------
    url
        Of the server, with a password if it needs one.
    name
        Begins all keys: the table's name.
    expire_after
        How long a value can be read; None for ever.
    """

    def __init__(self, url: str, name: str, expire_after: timedelta | None) -> None:
        try:
            import redis
        except ImportError as error:
            raise StreamwardenError("EXTRA_MISSING", "redis: install streamwarden[redis]") from error

        self._errors = redis.exceptions.RedisError
        self._expire_ms = None if expire_after is None else expire_after // timedelta(milliseconds=1)
        self._name = name
        self._db: Redis = redis.Redis.from_url(
            url, decode_responses=True, socket_timeout=30, socket_connect_timeout=10, health_check_interval=30
        )
        scripts = (_WRITE, _ADVANCE, _BEGIN, _DROP)
        self._write, self._advance, self._begin, self._drop = (self._db.register_script(one) for one in scripts)

    @override
    def position(self) -> Position | None:
        found: dict[str, str] = self._ask(lambda: self._db.hgetall(self._position_key))
        if not found:
            return None
        epoch, generation, batch = (int(found[name]) for name in ("epoch", "generation", "batch"))
        return Position(epoch, generation, batch, found["complete"] == "1")

    @override
    def begin(self, position: Position) -> None:
        done = self._ask(functools.partial(self._begin, keys=[self._position_key], args=_arguments(position)))
        if done < 0:
            raise StoreMoved("it has a later epoch")

    @override
    def write(
        self, entries: Iterable[Entry], after: Position, position: Position, *, watermark_ms: int, now_ms: int
    ) -> int:
        expires = "" if self._expire_ms is None else str(now_ms + self._expire_ms)
        fixed = [*_arguments(after), *_arguments(position)[:3], str(watermark_ms), expires]
        accepted = 0
        for some in _parts(entries):
            keys = [self._position_key, *(self._key(one.key) for one in some)]
            arguments = [*fixed, *(one.value or "" for one in some)]
            accepted += self._checked(functools.partial(self._write, keys=keys, args=arguments))
        both = [*_arguments(after), *_arguments(position)]
        self._checked(functools.partial(self._advance, keys=[self._position_key], args=both))
        return accepted

    @override
    def drop_older(self, position: Position) -> int:
        dropped, older = 0, [str(position.epoch), str(position.batch)]
        for key in self._ask(lambda: list(self._keys())):
            dropped += self._ask(functools.partial(self._drop, keys=[key], args=older))
        return dropped

    @override
    def get(self, key: str, *, now_ms: int) -> Served | None:
        del now_ms
        value, generation, batch, watermark = self._ask(lambda: self._db.hmget(self._key(key), "v", "g", "b", "w"))
        return None if value is None else served(value, int(generation), int(batch), int(watermark))

    @override
    def clear(self) -> None:
        def remove() -> None:
            for some in _parts(self._keys()):
                self._db.unlink(*some)
            self._db.delete(self._position_key)

        self._ask(remove)

    @override
    def close(self) -> None:
        self._db.close()

    @property
    def _position_key(self) -> str:
        return f"streamwarden:{self._name}:position"

    def _keys(self) -> Iterator[str]:
        # Names of tables have no characters that mean something in a pattern.
        found: Iterator[str] = self._db.scan_iter(match=self._key("*"), count=_MANY)
        return found

    def _key(self, key: str) -> str:
        return f"streamwarden:{self._name}:at:{key}"

    def _checked(self, call: Any) -> int:
        done: int = self._ask(call)
        if done < 0:
            raise StoreMoved("it is not where this writer left it")
        return done

    def _ask(self, call: Any) -> Any:
        try:
            return call()
        except self._errors as error:
            raise StreamwardenError("SERVING_UNREACHABLE", f"Redis, table {self._name}: {error}") from error


def _parts(entries: Iterable[_T]) -> Iterator[list[_T]]:
    iterator = iter(entries)
    while part := list(itertools.islice(iterator, _MANY)):
        yield part


def _arguments(position: Position) -> list[str]:
    return [str(position.epoch), str(position.generation), str(position.batch), str(int(position.complete))]
