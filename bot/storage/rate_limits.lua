-- The scripts of the shared rate limits. Each is atomic and uses the server's time.

-- name: now
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

-- name: take
-- The generic cell rate algorithm, as in InProcessRateLimits. A key holds the theoretical arrival
-- of its next event, and expires at that time.
{now}
local begin = now
for index, key in ipairs(KEYS) do
    local tolerance = tonumber(ARGV[2 * index + 1])
    begin = math.max(begin, tonumber(redis.call('GET', key) or now) - tolerance)
end
local wait = begin - now
if wait <= tonumber(ARGV[1]) then
    for index, key in ipairs(KEYS) do
        local interval = tonumber(ARGV[2 * index])
        local arrival = math.max(tonumber(redis.call('GET', key) or now), begin) + interval
        local text = string.format('%.6f', arrival)
        redis.call('SET', key, text, 'PX', math.ceil((arrival - now) * 1000))
    end
end
return string.format('%.6f', wait)

-- name: acquire
-- KEYS[1] ranks the holders by the end of their leases. With a waiter, KEYS[2] ranks the waiters by
-- urgency times 10000000000 (more than the server's time in seconds) plus the start of their wait,
-- and KEYS[3] ranks them by when they expire.
{now}
local limit, holder, seconds = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local free = limit - redis.call('ZCARD', KEYS[1])
if not redis.call('ZSCORE', KEYS[1], holder) then
    if #KEYS > 1 then
        local waiter, urgency, patience = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
        for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do
            redis.call('ZREM', KEYS[2], gone)
            redis.call('ZREM', KEYS[3], gone)
        end
        local known = redis.call('ZSCORE', KEYS[2], waiter)
        local since = known and tonumber(known) % 10000000000 or now
        local rank = string.format('%.6f', urgency * 10000000000 + since)
        redis.call('ZREM', KEYS[2], waiter)
        redis.call('ZREM', KEYS[3], waiter)
        if redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. rank) >= free then
            redis.call('ZADD', KEYS[2], rank, waiter)
            redis.call('ZADD', KEYS[3], string.format('%.6f', now + patience), waiter)
            redis.call('PEXPIRE', KEYS[2], math.ceil(patience * 1000))
            redis.call('PEXPIRE', KEYS[3], math.ceil(patience * 1000))
            return 0
        end
    elseif free <= 0 then
        return 0
    end
end
redis.call('ZADD', KEYS[1], string.format('%.6f', now + seconds), holder)
redis.call('PEXPIRE', KEYS[1], math.ceil(seconds * 1000))
return redis.call('ZCARD', KEYS[1])

-- name: count_processes
-- KEYS[1] ranks the processes that share the limits by how long each counts as running.
{now}
local seconds = tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.6f', now + seconds), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(seconds * 1000))
return redis.call('ZCARD', KEYS[1])

-- name: wait
-- KEYS: for each scope, a key that exists while it refuses calls, and one that exists while its
-- learned windows apply; then, for each window, a list of its newest calls.
{now}
local scopes = tonumber(ARGV[1])
local wait = 0
for index = 1, scopes do
    wait = math.max(wait, redis.call('PTTL', KEYS[2 * index - 1]) / 1000)
end
for index = 2 * scopes + 1, #KEYS do
    local given = 2 + 4 * (index - 2 * scopes - 1)
    local allowed, seconds, scope = ARGV[given], tonumber(ARGV[given + 2]), ARGV[given + 3]
    if scope == '' or redis.call('EXISTS', scope) == 1 then
        local call = redis.call('LINDEX', KEYS[index], -tonumber(allowed))
        if call then
            wait = math.max(wait, tonumber(call) + seconds - now)
        end
    end
end

-- name: seconds_until_call
{wait}
return string.format('%.6f', wait)

-- name: take_call
{wait}
if wait <= 0 then
    for index = 2 * scopes + 1, #KEYS do
        local given = 2 + 4 * (index - 2 * scopes - 1)
        redis.call('RPUSH', KEYS[index], string.format('%.6f', now))
        redis.call('LTRIM', KEYS[index], -tonumber(ARGV[given + 1]), -1)
        redis.call('PEXPIRE', KEYS[index], math.ceil(tonumber(ARGV[given + 2]) * 1000))
    end
end

return string.format('%.6f', wait)

-- name: block_calls
local left = redis.call('PTTL', KEYS[1])
if tonumber(ARGV[1]) > math.max(left, 0) then
    redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[2])
