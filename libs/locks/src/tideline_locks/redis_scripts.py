"""The Lua scripts of the Redis lock. Each changes one lock atomically, on the server's time.

KEYS[1] is the lock, a hash: `lease_id owner acquired_ms expires_ms` while it is held; `fence` (greatest granted), `tickets`
(arrivals so far) and `released` (the last lease that its owner released in time) outlive it. KEYS[2] is the queue: lease ids by
ticket. KEYS[3] holds until when each of them counts as alive. A waiter sleeps on its own list, `<lock>:wake:<lease id>`.

A waiter that reads its fence (`sight` unread, then read) gets the reply `look` when it is next. While alive, it keeps its ticket
and the lock waits for it. A waiter with an old fixed fence is removed.

Every script may be sent twice (the first reply may be lost) and gives the same reply.
"""

COMMANDS = (
    *("evalsha", "script|load", "time", "hget", "hgetall", "hmget", "hset", "hdel", "hincrby", "pexpire", "del", "rpush", "blpop"),
    *("zadd", "zrem", "zscore", "zrange", "zrangebyscore", "scan", "hello", "client", "ping"),
)
"""All commands that the Redis user of the locks needs, on keys `tideline:lock:*`."""

PRELUDE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function whole(number) return string.format('%.0f', number) end
local lock, queue, alive = KEYS[1], KEYS[2], KEYS[3]
local function last() return unpack(redis.call('HMGET', lock, 'lease_id', 'expires_ms', 'owner', 'acquired_ms', 'fence')) end
local function forget(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('ZREM', alive, waiter)
  redis.call('DEL', lock .. ':wake:' .. waiter)
end
local function first_waiter()
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', alive, '-inf', now)) do forget(dead) end
  return redis.call('ZRANGE', queue, 0, 0)[1]
end
local function wake_first()
  local waiter = first_waiter()
  if not waiter then return end
  local wake = lock .. ':wake:' .. waiter
  redis.call('DEL', wake)
  redis.call('RPUSH', wake, '1')
  redis.call('PEXPIRE', wake, 60000)
end
local function stand(waiter, ttl_ms, retention_ms)
  if not redis.call('ZSCORE', queue, waiter) then redis.call('ZADD', queue, redis.call('HINCRBY', lock, 'tickets', 1), waiter) end
  redis.call('ZADD', alive, whole(now + tonumber(ttl_ms)), waiter)
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, retention_ms) end
end
local function clear() redis.call('HDEL', lock, 'lease_id', 'owner', 'acquired_ms', 'expires_ms') end
"""

ACQUIRE = (
    PRELUDE
    + """
-- ARGV: lease id, owner, ttl ms, fence, waiter ttl ms (0: do not queue), retention ms, sight
local lease_id, expires, owner, acquired, fence = last()
local live = lease_id and tonumber(expires) > now
if live and lease_id == ARGV[1] then return {'granted', acquired, whole(now - tonumber(acquired))} end
local queues, sight = tonumber(ARGV[5]) > 0, ARGV[7]
local first = first_waiter()
local is_next = not first or first == ARGV[1]
if sight == 'unread' and is_next then
  stand(ARGV[1], ARGV[5], ARGV[6])
  return {'look'}
end
if sight ~= 'unread' and fence and tonumber(ARGV[4]) < tonumber(fence) then
  if sight == 'read' then
    stand(ARGV[1], ARGV[5], ARGV[6])
    return {'stale', fence}
  end
  forget(ARGV[1])
  if first == ARGV[1] then wake_first() end
  return {'stale', fence}
end
if not live and is_next then
  forget(ARGV[1])
  redis.call('HSET', lock, 'lease_id', ARGV[1], 'owner', ARGV[2], 'acquired_ms', whole(now),
    'expires_ms', whole(now + tonumber(ARGV[3])), 'fence', ARGV[4])
  redis.call('PEXPIRE', lock, ARGV[6])
  -- The next waiter reads the log while this holder works, not while the lock is free.
  wake_first()
  return {'granted', whole(now), '0'}
end
if queues then stand(ARGV[1], ARGV[5], ARGV[6]) end
local until_ms = live and tonumber(expires) or tonumber(redis.call('ZSCORE', alive, first) or now)
return {'held', live and owner or false, live and acquired or false, whole(math.max(0, until_ms - now))}
"""
)

RENEW = (
    PRELUDE
    + """
-- ARGV: lease id, ttl ms, retention ms
local lease_id, expires = last()
if lease_id ~= ARGV[1] or tonumber(expires) <= now then return 0 end
redis.call('HSET', lock, 'expires_ms', whole(now + tonumber(ARGV[2])))
redis.call('PEXPIRE', lock, ARGV[3])
return 1
"""
)

RELEASE = (
    PRELUDE
    + """
-- ARGV: lease id
if redis.call('HGET', lock, 'released') == ARGV[1] then return 1 end
local lease_id, expires = last()
if lease_id ~= ARGV[1] then return 0 end
local in_time = tonumber(expires) > now
clear()
if in_time then redis.call('HSET', lock, 'released', ARGV[1]) end
wake_first()
return in_time and 1 or 0
"""
)

WITHDRAW = (
    PRELUDE
    + """
-- ARGV: lease id. Removes a waiter, and a lease that was granted to it without a reply.
local lease_id = last()
forget(ARGV[1])
if lease_id == ARGV[1] then clear() end
wake_first()
return 1
"""
)

BREAK = (
    PRELUDE
    + """
-- ARGV: which lease to end, `expired` or `any`
local lease_id, expires, owner, acquired, fence = last()
local is_live = lease_id and tonumber(expires) > now
if not lease_id or (is_live and ARGV[1] ~= 'any') then return false end
clear()
wake_first()
return {lease_id, owner, acquired, expires, fence, is_live and 'live' or 'expired'}
"""
)
