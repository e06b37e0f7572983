"""`GET /motto`: what is served here, in a sentence."""

from starlette.responses import PlainTextResponse
from starlette.routing import Route

from core.api import Entry, hookimpl


class Motto:
    def __init__(self, engine, config):
        self._engine = engine

    def routes(self):
        return [Route("/motto", self._say, methods=["GET"])]

    async def _say(self, request):
        return PlainTextResponse(f"Here speaks {self._engine.served_names[0]}.\n")


@hookimpl
def engine_routes():
    return [Entry("motto", Motto, "GET /motto")]
