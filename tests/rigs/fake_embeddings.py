"""An embeddings API on loopback, whose vectors count letters, so similar texts are near."""

import json

from aiohttp import web

TOO_MANY = 10


class FakeEmbeddings:
    def __init__(self):
        self.log = []  # of dictionaries: headers, body
        self.status = 200
        self.answer = None  # what to say instead
        self._runner = None
        self.base_url = ""

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/v1/embeddings", self._embeddings)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *error):
        await self._runner.cleanup()

    async def _embeddings(self, request):
        body = json.loads(await request.read())
        self.log.append({"headers": dict(request.headers), "body": body})
        if self.answer is not None:
            return web.Response(body=self.answer, status=self.status)
        if self.status != 200 or len(body["input"]) > TOO_MANY:
            error = {"error": {"message": "no, sk-CANARY", "code": "refused"}}
            return web.json_response(error, status=self.status if self.status != 200 else 400)
        rows = [
            {"object": "embedding", "index": number, "embedding": counted(text)}
            for number, text in enumerate(body["input"])
        ]
        # The order is not promised, only the numbers.
        return web.json_response({"object": "list", "data": rows[::-1], "model": body["model"]})


def counted(text):
    counts = [0.5] * 64
    for letter in text.lower():
        counts[ord(letter) % 64] += 7
    return counts
