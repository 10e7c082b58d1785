"""simwire: simcord 3.2.1's backend behind REAL sockets (HTTP API + gateway websocket + CDN) on loopback.

simcord patches discord.py at object level; this puts the same third-party model of Discord on the wire, so an
unmodified bot PROCESS (discord.py with its own HTTPClient, rate limiter, gateway, resume) can be tested, and adds the
faults simcord cannot show: 429 with retry_after, 5xx, slow/half-open HTTP, gateway cut/op7/op9, RESUME with replay.
Pinned to simcord==3.2.1 private modules.  Driven in process.
"""
from __future__ import annotations
import asyncio, copy, fnmatch, io, json, sys, time, zlib
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
import discord
from aiohttp import web, WSMsgType
from simcord import interactions as sci
from simcord import intents as scintents
from simcord.backend import Backend, serializers
from simcord.backend.errors import BackendError, SetupError
from simcord.builders import GuildHandle, UserHandle
from simcord.env import Env
from simcord.http import router
import simcord.http.routes  # noqa: F401 registers handlers
from simcord._clock import Clock

CDN = "https://cdn.simcord.invalid"

@router.route("POST", "/webhooks/{webhook_id}/{token}")
def _execute_webhook(ctx):
    """Execute a webhook as simcord does, but also with `thread_id`, to post in a thread of the channel."""
    thread = ctx.params.get("thread_id")
    if thread is None or ctx.args["token"] in ctx.backend.interaction_tokens: return _plain_execute(ctx)
    hook = ctx.backend.webhooks.get(ctx.backend.webhook_tokens.get(ctx.args["token"]))
    place = ctx.backend.channels.get(int(thread))
    if hook is None or place is None or place.parent_id != hook.channel_id: raise BackendError(404, 10003, "Unknown Channel")
    body, _ = simcord.http.routes.interactions._incoming_webhook_body(ctx)
    m = simcord.http.routes.interactions.bot_message(ctx, place.id, author_id=hook.webhook_user_id, webhook_id=hook.id, body=body, webhook_execute=True)
    return simcord.http.routes.interactions.message_response(ctx, m, exempt_root=True)
_hooks = [r for r in router._ROUTES["POST"] if r[0] == ["webhooks", "{webhook_id}", "{token}"]]
_plain_execute = _hooks[0][1]; router._ROUTES["POST"].remove(_hooks[0])
def _in_threads(plain):
    """Let edits, reads and deletions of a webhook's message in a thread name the thread in `thread_id`."""
    def handler(ctx):
        hook = ctx.backend.webhooks.get(ctx.backend.webhook_tokens.get(ctx.args["token"])); thread = ctx.params.get("thread_id")
        if hook is None or thread is None: return plain(ctx)
        home = hook.channel_id; hook.channel_id = int(thread)
        try: return plain(ctx)
        finally: hook.channel_id = home
    return handler
for _method in ("GET", "PATCH", "DELETE"): router._ROUTES[_method] = [(t, _in_threads(h)) if t == ["webhooks", "{webhook_id}", "{token}", "messages", "{message_id}"] else (t, h) for t, h in router._ROUTES[_method]]
_plain_body = simcord.http.routes.interactions._incoming_webhook_body
def _webhook_body(ctx):
    """Let webhooks created by the bot belong to its application and have buttons (simcord treats all webhooks as foreign)."""
    hook = ctx.backend.webhooks.get(ctx.backend.webhook_tokens.get(ctx.args["token"]))
    return (dict(ctx.body()), True) if hook is not None and hook.creator_id == ctx.backend.bot_user.id else _plain_body(ctx)
simcord.http.routes.interactions._incoming_webhook_body = _webhook_body
_plain_role = serializers.role_payload
def _role(role, *a, **k):
    """Add the bot's id to the role that Discord creates for it; discord.py's Guild.self_role needs it."""
    said = _plain_role(role, *a, **k)
    return {**said, "tags": {"bot_id": str(SimWire.bot_id)}} if role.managed and SimWire.bot_id else said
serializers.role_payload = _role
_age_restricted: set[int] = set()
_plain_channel = serializers.channel_payload
serializers.channel_payload = lambda backend, channel, *a, **k: {**_plain_channel(backend, channel, *a, **k), **({"nsfw": True} if channel.id in _age_restricted else {})}
_plain_webhook = serializers.webhook_payload
serializers.webhook_payload = lambda backend, hook, *a, **k: {**_plain_webhook(backend, hook, *a, **k), **({"application_id": str(backend.application_id)} if hook.creator_id == backend.bot_user.id else {})}

_threads = [r for r in router._ROUTES["POST"] if r[0] == ["channels", "{channel_id}", "messages", "{message_id}", "threads"]]
_plain_open = _threads[0][1]; router._ROUTES["POST"].remove(_threads[0])
@router.route("POST", "/channels/{channel_id}/messages/{message_id}/threads")
def _open_thread(ctx):
    """Open a thread with the id of its message; refuse a second one, or one outside of guilds (simcord allows both)."""
    channel = ctx.backend.get_channel(ctx.int_arg("channel_id"))
    if channel.guild_id is None or channel.is_thread: raise BackendError(400, 50024, "Cannot execute action on this channel type")
    if ctx.int_arg("message_id") in ctx.backend.channels: raise BackendError(400, 160004, "A thread has already been created for this message")
    return _plain_open(ctx)

class WallClock(Clock):
    def now(self): return datetime.now(timezone.utc) + timedelta(seconds=self.elapsed)

class WireEnv(Env):
    """simcord Env without an attached bot: actors/builders work, settling is a no-op (the bot is another process)."""
    def __init__(self):
        super().__init__(discord.Client(intents=discord.Intents.all()))
        self.backend = Backend(clock=WallClock()); self._started = True
    async def _settle_internal(self, *a, **k): await asyncio.sleep(0)
    def _begin_operation(self, label): pass
    def _end_operation(self): pass
    def _mark_mutation(self): pass

class Session:
    def __init__(self, sid, intents, shard=(0, 1)): self.id, self.intents, self.seq, self.buffer, self.ws, self.shard = sid, intents, 0, [], None, tuple(shard)
    def has(self, guild): return (int(guild or 0) >> 22) % self.shard[1] == self.shard[0]   # 0: a direct message

class SimWire:
    bot_id = None
    def __init__(self, host="127.0.0.1", port=3701, token="sim-token"):
        self.host, self.port, self.token = host, port, token
        self.env = WireEnv(); self.b = self.env.backend; SimWire.bot_id = self.b.bot_user.id
        self.b.subscribers.append(self._on_event)
        self.sessions: dict[str, Session] = {}; self.faults: list[dict] = []; self.log: list[dict] = []; self.events: list[tuple] = []
        self.gw_faults = {"accept": True, "invalid_session": 0}
        self.buckets: dict[str, list] = {}; self.bucket_limit = 0; self.bucket_window = 5.0   # 0 = off
        self.nonces: dict[tuple, tuple] = {}; self.nonce_window = 300.0    # (channel, nonce) -> (time, message id)
        self.shards, self.max_concurrency, self.identifies_left, self.identified_at = 1, 1, 999, {}   # what /gateway/bot says; bucket -> time
        self.base = f"http://{host}:{port}"
    # ------------------------------------------------------------------ lifecycle
    async def start(self):
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/api/{rest:.*}", self.rest)
        app.router.add_get("/cdn/{rest:.*}", self.cdn)
        app.router.add_get("/", self.gateway)
        self.runner = web.AppRunner(app); await self.runner.setup()
        await web.TCPSite(self.runner, self.host, self.port).start()
        self.port = self.runner.addresses[0][1]; self.base = f"http://{self.host}:{self.port}"; return self   # port 0: any free one
    async def stop(self): await self.cut(); await self.runner.cleanup()
    async def __aenter__(self): return await self.start()
    async def __aexit__(self, *a): await self.stop()
    def _wire(self, obj): return json.dumps(obj, default=str).replace(CDN, self.base + "/cdn")
    def restrict_to_adults(self, channel):
        _age_restricted.add(channel); self.b.announce_channel_update(channel)
    # ------------------------------------------------------------------ REST
    def fault(self, method="*", path="*", *, times=1, status=None, retry_after=None, is_global=False, delay=0.0, drop=False, body=None, after=False, code=0, scope="user", via=True):
        """after=True: the request IS applied before the fault (lost response)."""
        self.faults.append(dict(method=method, path=path, times=times, status=status, retry_after=retry_after, is_global=is_global, delay=delay, drop=drop, body=body, after=after, code=code, scope=scope, via=via))
    def _take_fault(self, method, path):
        for f in list(self.faults):
            if f["method"] in ("*", method) and fnmatch.fnmatch(path, f["path"]):
                if f["times"] is not None:
                    f["times"] -= 1
                    if f["times"] <= 0: self.faults.remove(f)
                return f
    async def rest(self, req: web.Request):
        path = "/" + req.match_info["rest"]
        if path[1:2] == "v" and path[2:4].strip("/").isdigit(): path = "/" + path.split("/", 2)[2]
        form, files, body = None, [], None
        if req.content_type.startswith("multipart/"):
            form = []
            async for part in await req.multipart():
                if part.filename: files.append(SimpleNamespace(fp=io.BytesIO(await part.read()), filename=part.filename, description=None, name=part.name)); form.append({"name": part.name, "filename": part.filename})
                else: form.append({"name": part.name, "value": await part.text()})
            body, files = router.parse_form(form, files)
            for i, f in enumerate(files):
                for a in (body or {}).get("attachments", []) if isinstance(body, dict) else []:
                    if str(a.get("id")) == f.name.removeprefix("files[").rstrip("]"): f.description = a.get("description")
        elif req.can_read_body:
            t = await req.text(); body = json.loads(t) if t else None
        entry = dict(t=time.time(), method=req.method, path=path, json=body, status=None, auth=req.headers.get("Authorization")); self.log.append(entry)
        needs_auth = not (path.startswith("/interactions/") or (path.startswith("/webhooks/") and path.count("/") > 2))
        if needs_auth and req.headers.get("Authorization") != "Bot " + self.token: return self._resp(entry, 401, {"code": 0, "message": "401: Unauthorized"})
        f = self._take_fault(req.method, path)
        if f and f["delay"]: await asyncio.sleep(f["delay"])
        if f and not f["after"] and (r := await self._faulty(req, entry, f)) is not None: return r
        hdr = {}
        if self.bucket_limit:
            seg = path.strip("/").split("/"); key = req.method + "/" + "/".join(seg[:2]) + "/" + "/".join(s for s in seg[2:] if not s.isdigit()); now = time.time()
            w = self.buckets.setdefault(key, [0, now + self.bucket_window])
            if now >= w[1]: w[0], w[1] = 0, now + self.bucket_window
            w[0] += 1; left = max(0, self.bucket_limit - w[0])
            hdr = {"X-RateLimit-Limit": str(self.bucket_limit), "X-RateLimit-Remaining": str(left), "X-RateLimit-Reset": f"{w[1]:.3f}", "X-RateLimit-Reset-After": f"{w[1]-now:.3f}", "X-RateLimit-Bucket": f"{abs(hash(key)):x}"}
            if w[0] > self.bucket_limit: return self._resp(entry, 429, {"message": "You are being rate limited.", "retry_after": round(w[1] - now, 3), "global": False}, {**hdr, "Retry-After": str(int(w[1] - now) + 1), "X-RateLimit-Scope": "user", "Via": "1.1 simwire"})
        if path == "/gateway/bot": return self._resp(entry, 200, {"url": self.base.replace("http", "ws"), "shards": self.shards, "session_start_limit": {"total": 1000, "remaining": self.identifies_left, "reset_after": 60_000, "max_concurrency": self.max_concurrency}}, hdr)
        channel = int(path.split("/")[2]) if fnmatch.fnmatch(path, "/channels/*/messages") else None
        nonce = (channel, str(body["nonce"])) if channel and req.method == "POST" and body and body.get("enforce_nonce") and body.get("nonce") is not None else None
        try:
            if nonce and len(nonce[1]) > 25: return self._resp(entry, 400, {"code": 50035, "message": "nonce: Must be 25 or fewer in length."}, hdr)
            if nonce and time.time() - self.nonces.get(nonce, (0,))[0] < self.nonce_window:          # the first message again, no new one
                entry["repeated"] = True; res = serializers.message_payload(self.b, self.b.get_message(channel, self.nonces[nonce][1]))
            elif channel and req.method == "GET" and "after" in req.query: res = self._after(path, dict(req.query))
            else: res = router.dispatch(self.b, req.method, path, json=body, params=dict(req.query), files=files, reason=req.headers.get("X-Audit-Log-Reason"))
            if nonce and not entry.get("repeated"): self.nonces[nonce] = (time.time(), int(res["id"]))
        except (router.RouteNotImplemented, router.UnsupportedField) as e: print("PARITY GAP", e, file=sys.stderr); return self._resp(entry, 501, {"code": 0, "message": str(e)}, hdr)
        except BackendError as e: return self._resp(entry, e.status, e.to_json(), hdr)
        except SetupError as e: return self._resp(entry, 400, {"code": 50035, "message": str(e)}, hdr)
        if f and f["after"] and (r := await self._faulty(req, entry, f)) is not None: return r
        return self._resp(entry, 204 if res is None else 200, res, hdr)
    def _after(self, path, params):
        """As on Discord, return the oldest `limit` messages after the id, newest first (simcord returns the newest)."""
        after, limit = int(params.pop("after")), int(params.get("limit", 50))
        newer = [m for m in router.dispatch(self.b, "GET", path, json=None, params={**params, "limit": sys.maxsize}, files=[], reason=None) if int(m["id"]) > after]
        return newer[-limit:]
    async def _faulty(self, req, entry, f):
        if f["drop"]: entry["status"] = "dropped"; req.transport.abort(); raise ConnectionResetError
        if f["retry_after"] is not None:
            h = {"Retry-After": str(f["retry_after"]), "X-RateLimit-Scope": "global" if f["is_global"] else f["scope"]}
            if f["via"]: h["Via"] = "1.1 simwire"           # without Via discord.py takes it for a Cloudflare ban and raises
            if f["is_global"]: h["X-RateLimit-Global"] = "true"
            return self._resp(entry, 429, {"message": "You are being rate limited.", "retry_after": f["retry_after"], "global": f["is_global"]}, h)
        if f["status"]: return self._resp(entry, f["status"], f["body"] if f["body"] is not None else {"code": f["code"], "message": "injected"})
    def _resp(self, entry, status, obj, headers=None):
        entry["status"] = status
        if obj is None: return web.Response(status=status, headers=headers)
        return web.Response(status=status, body=self._wire(obj).encode(), headers={**(headers or {}), "Content-Type": "application/json"})  # exact match: discord.py compares it
    async def cdn(self, req):
        blob = self.b.cdn.get(CDN + "/" + req.match_info["rest"])
        return web.Response(body=blob) if blob is not None else web.Response(status=404)
    # ------------------------------------------------------------------ gateway
    def _on_event(self, event, payload):
        self.events.append((time.time(), event, payload))
        guild = payload.get("guild_id") or (payload.get("id") if event.startswith("GUILD_") and "guild_id" not in payload else 0)
        for s in list(self.sessions.values()):
            if s.has(guild): self._feed(s, event, payload)
    def _feed(self, s, event, payload, raw=False):
        gate = None if raw else scintents.required_intent(event, payload)
        if gate and not getattr(s.intents, gate): return
        d = copy.deepcopy(dict(payload)); me = self.b.bot_user.id
        if not s.intents.message_content and event in ("MESSAGE_CREATE", "MESSAGE_UPDATE"): scintents.censor_message(d, me, backend=self.b)
        if event == "GUILD_CREATE": scintents.prune_guild_create(d, s.intents, me)
        if event == "INTERACTION_CREATE":
            d.setdefault("locale", "en-US")
            if d.get("guild_id"): d["guild_locale"] = self.b.get_guild(int(d["guild_id"])).preferred_locale
        s.seq += 1; msg = {"op": 0, "t": event, "s": s.seq, "d": d}; s.buffer.append(msg); del s.buffer[:-2000]
        if s.ws is not None: s.ws.outq.put_nowait(msg)
    async def gateway(self, req: web.Request):
        if req.headers.get("Upgrade", "").lower() != "websocket": return web.Response(text="simwire")
        if not self.gw_faults["accept"]: return web.Response(status=503)
        ws = web.WebSocketResponse(); await ws.prepare(req); z = zlib.compressobj() if req.query.get("compress") == "zlib-stream" else None
        ws.outq = asyncio.Queue(); ws.transport_ = req.transport; ws.closed_here = False; sess = None
        async def pump():
            while True:
                m = await ws.outq.get()
                if isinstance(m, int): ws.closed_here = True; await ws.close(code=m); return
                t = self._wire(m).encode()
                await (ws.send_bytes(z.compress(t) + z.flush(zlib.Z_SYNC_FLUSH)) if z else ws.send_str(t.decode()))
        task = asyncio.create_task(pump()); ws.outq.put_nowait({"op": 10, "d": {"heartbeat_interval": 41250}, "s": None, "t": None})
        try:
            async for m in ws:
                if m.type not in (WSMsgType.TEXT, WSMsgType.BINARY): continue
                p = json.loads(m.data); op, d = p["op"], p.get("d"); self.events.append((time.time(), f"<op{op}", d))
                if op == 1: ws.outq.put_nowait({"op": 11, "d": None, "s": None, "t": None})
                elif op == 2:
                    if (d["token"] or "").removeprefix("Bot ") != self.token: ws.outq.put_nowait(4004); continue
                    if self.gw_faults.get("refuse_identify"): ws.outq.put_nowait(self.gw_faults["refuse_identify"]); continue   # a close code: 4014 ...
                    shard = d.get("shard") or [0, 1]; bucket = shard[0] % self.max_concurrency; now = time.time()
                    if shard[1] > 1 and now - self.identified_at.get(bucket, 0) < 5:              # max_concurrency: one in 5 s for each bucket
                        self.events.append((now, "<op2 too early", shard)); ws.outq.put_nowait({"op": 9, "d": False, "s": None, "t": None}); continue
                    self.identified_at[bucket] = now; self.identifies_left -= 1
                    sess = Session(f"sim-{len(self.sessions)}-{time.time_ns()}", discord.Intents._from_value(d["intents"]), shard); self.sessions[sess.id] = sess; sess.ws = ws
                    gs = [g for g in self.b.guilds.values() if sess.has(g.id)]
                    self._feed(sess, "READY", {"v": 10, "user": dict(serializers.user_payload(self.b.bot_user)), "guilds": [{"id": str(g.id), "unavailable": True} for g in gs], "session_id": sess.id, "session_type": "normal", "resume_gateway_url": self.base.replace("http", "ws"), "shard": list(sess.shard), "application": {"id": str(self.b.application_id), "flags": 0}}, raw=True)
                    for g in gs: self._feed(sess, "GUILD_CREATE", serializers.guild_create_payload(self.b, g))
                elif op == 6:
                    if d["token"].removeprefix("Bot ") != self.token or self.gw_faults.get("refuse_identify") == 4004: ws.outq.put_nowait(4004); continue
                    old = self.sessions.get(d["session_id"])
                    if old is None or self.gw_faults["invalid_session"]:
                        self.gw_faults["invalid_session"] = max(0, self.gw_faults["invalid_session"] - 1); ws.outq.put_nowait({"op": 9, "d": False, "s": None, "t": None})
                        if old: self.sessions.pop(old.id, None)
                        continue
                    sess = old; sess.ws = ws
                    for x in [x for x in sess.buffer if x["s"] > d["seq"]]: ws.outq.put_nowait(x)
                    self._feed(sess, "RESUMED", {}, raw=True)
        finally:
            task.cancel()
            if sess and sess.ws is ws: sess.ws = None
            if sess and ws.close_code in (1000, 1001) and not ws.closed_here: self.sessions.pop(sess.id, None)   # the bot ended its session
        return ws
    async def cut(self, code=None):
        """Abort the TCP connection (code=None), or close with a gateway close code (4000 resumable, 4004, 4009...)."""
        for s in self.sessions.values():
            if s.ws is not None:
                ws, s.ws = s.ws, None
                if code is None: ws.transport_.abort()
                else: ws.outq.put_nowait(code)
        await asyncio.sleep(0)
    async def forget(self):
        """Lose all sessions and abort their connections: RESUME is answered with op 9."""
        gone, self.sessions = self.sessions, {}
        for s in gone.values():
            if s.ws is not None: s.ws.transport_.abort()
        await asyncio.sleep(0)
    def op(self, op, d=None):
        for s in self.sessions.values():
            if s.ws: s.ws.outq.put_nowait({"op": op, "d": d, "s": None, "t": None})
    # ------------------------------------------------------------------ world helpers
    def guild(self, name="Guild", **k): return GuildHandle(self.env, self.b.create_guild(name, **k))
    def user(self, name, **k): return UserHandle(self.env, self.b.make_user(name, **k))
    def member(self, guild, name, roles=(), **k): return guild.add_member(self.user(name, **k), roles=list(roles))
    def say(self, who, channel_id, content="", files=(), reply_to=None, **k):
        """files: [(name, bytes)], served by the CDN; reply_to: the id of a message in this channel."""
        if files: k["attachments"] = self.b.store_attachments(channel_id, files)
        if reply_to: k["reference"] = self.b.normalize_message_reference(channel_id, {"channel_id": str(channel_id), "message_id": str(reply_to)})
        return self.b.create_message(channel_id, who.id, content, **k)
    def edit(self, channel_id, message_id, content): return self.b.edit_message(channel_id, message_id, {"content": content})
    def delete(self, channel_id, message_id): return self.b.delete_message(channel_id, message_id)
    def buttons(self, message):
        """Return all buttons of a message payload as a flat list."""
        out, todo = [], list(message.get("components") or [])
        while todo:
            c = todo.pop(0); todo += c.get("components") or []; todo += [c["accessory"]] if c.get("accessory") else []
            if c.get("type") == 2: out.append(c)
        return out
    def history(self, channel_id):
        """Return what people saw, in order: (seconds, "MESSAGE_CREATE" | "MESSAGE_UPDATE" | "MESSAGE_DELETE", payload)."""
        return [(t, e, d) for t, e, d in self.events if e in ("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE") and str((d or {}).get("channel_id")) == str(channel_id)]
    def messages(self, channel_id): return [serializers.message_payload(self.b, m) for m in self.b.messages.get(channel_id, {}).values()]
