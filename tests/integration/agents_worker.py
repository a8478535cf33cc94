"""A worker that has no handler yet: the first step of moving over, with plain agents of Faust's alone."""

from typing import Any

from streams import Worker, choreography

app = Worker(choreography())
heard = app.topic("agents.heard", value_serializer="json")


@app.agent(app.topic("agents.said", value_serializer="json"))
async def repeat(stream: Any) -> None:
    """Say it once more."""
    async for said in stream:
        await heard.send(value=said)
