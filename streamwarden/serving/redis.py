"""A serving store in Redis, for readers on many machines."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from streamwarden.errors import StreamwardenError
from streamwarden.serving.store import Entry, Position, Served, ServingStore, served

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RedisStore"]

_T = TypeVar("_T")

_MANY = 100
"""Keys a call: Redis does nothing else meanwhile, for about a millisecond. A thousand make one read in a hundred wait
for six."""

# A position whose generation is newer refuses the whole call; a key whose (generation, batch) is newer stays.
_WRITE = """
local generation, batch = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = redis.call('HGET', KEYS[1], 'generation')
if now and tonumber(now) > generation then return -1 end
local accepted = 0
for i = 2, #KEYS do
    local had = redis.call('HMGET', KEYS[i], 'g', 'b')
    local g, b = tonumber(had[1] or -1), tonumber(had[2] or -2)
    if g < generation or (g == generation and b <= batch) then
        local value = ARGV[i + 3]
        if value == '' then
            redis.call('HDEL', KEYS[i], 'v')
            redis.call('HSET', KEYS[i], 'g', generation, 'b', batch, 'w', ARGV[3])
        else
            redis.call('HSET', KEYS[i], 'v', value, 'g', generation, 'b', batch, 'w', ARGV[3])
        end
        if ARGV[4] ~= '' then redis.call('PEXPIREAT', KEYS[i], ARGV[4]) else redis.call('PERSIST', KEYS[i]) end
        accepted = accepted + 1
    end
end
return accepted
"""

_PUT = """
local now = redis.call('HMGET', KEYS[1], 'generation', 'batch')
local g, b = tonumber(now[1] or -1), tonumber(now[2] or -2)
local generation, batch = tonumber(ARGV[1]), tonumber(ARGV[2])
if ARGV[4] == 'always' or g < generation or (g == generation and b <= batch) then
    redis.call('HSET', KEYS[1], 'generation', generation, 'batch', batch, 'complete', ARGV[3])
end
return 1
"""

_DROP = """
local g = redis.call('HGET', KEYS[1], 'g')
if g and tonumber(g) < tonumber(ARGV[1]) then return redis.call('DEL', KEYS[1]) end
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
        self._write, self._put, self._drop = (self._db.register_script(one) for one in (_WRITE, _PUT, _DROP))

    @override
    def position(self) -> Position | None:
        found: dict[str, str] = self._ask(lambda: self._db.hgetall(self._position_key))
        if not found:
            return None
        return Position(int(found["generation"]), int(found["batch"]), found["complete"] == "1")

    @override
    def begin(self, position: Position) -> None:
        self._ask(lambda: self._put(keys=[self._position_key], args=[*_arguments(position), "always"]))

    @override
    def write(self, entries: Iterable[Entry], position: Position, *, watermark_ms: int, now_ms: int) -> int:
        expires = "" if self._expire_ms is None else str(now_ms + self._expire_ms)
        fixed = [str(position.generation), str(position.batch), str(watermark_ms), expires]
        accepted = 0
        for some in _parts(entries):
            keys = [self._position_key, *(self._key(one.key) for one in some)]
            arguments = [*fixed, *(one.value or "" for one in some)]
            done = self._ask(functools.partial(self._write, keys=keys, args=arguments))
            if done < 0:
                # A later generation has begun.
                return accepted
            accepted += done
        self._ask(lambda: self._put(keys=[self._position_key], args=[*_arguments(position), ""]))
        return accepted

    @override
    def drop_older(self, generation: int) -> int:
        dropped = 0
        for key in self._ask(lambda: list(self._keys())):
            dropped += self._ask(functools.partial(self._drop, keys=[key], args=[str(generation)]))
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
    return [str(position.generation), str(position.batch), str(int(position.complete))]
