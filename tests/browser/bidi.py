"""The program that Playwright starts as Firefox: `python bidi.py FIREFOX ARGUMENTS...`.

It starts Firefox and passes on their messages (WebDriver BiDi), but for a command that Playwright begins each
context with and that Debian's Firefox does not have: that one is answered here.
"""

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE

from aiohttp import ClientSession, web

UNKNOWN = "emulation.setMediaFeaturesOverride"
FIREFOX = web.AppKey("firefox", str)
READY = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")


async def relay(request: web.Request) -> web.WebSocketResponse:
    """Pass on one connection, until either side ends it."""
    here = web.WebSocketResponse(max_msg_size=0)
    await here.prepare(request)
    address = request.app[FIREFOX]
    async with ClientSession() as session, session.ws_connect(address, max_msg_size=0) as there:

        async def answers() -> None:
            async for message in there:
                await here.send_str(message.data)
            await here.close()

        passing = asyncio.create_task(answers())
        async for message in here:
            command = json.loads(message.data)
            if command["method"] == UNKNOWN:
                await here.send_json({"type": "success", "id": command["id"], "result": {}})
            else:
                await there.send_str(message.data)
        passing.cancel()
    return here


async def main(command: list[str]) -> None:
    """Run Firefox to its end."""
    firefox = await asyncio.create_subprocess_exec(*command, stderr=PIPE)
    assert firefox.stderr is not None
    async for line in firefox.stderr:
        if found := READY.search(line):
            app = web.Application()
            app[FIREFOX] = f"{found[1].decode()}/session"
            app.router.add_get("/session", relay)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            line = b"WebDriver BiDi listening on ws://127.0.0.1:%d\n" % runner.addresses[0][1]
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
    await firefox.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
