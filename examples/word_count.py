"""Faust's example `word_count`, on the lanes: docs/faust.md sets the two side by side.

By hand:

    export STEADFAUST_APP_ID=word-counts      # in both terminals
    steadfaust up
    faust -A examples.word_count worker      # in a second terminal
    python -m examples.word_count            # posts 400 words

Then http://127.0.0.1:6066/tables/word-counts/rows?key=fox shows 100.
"""

from __future__ import annotations

import asyncio

from streams import Message, Outcome, Row, Service, Table, Worker, choreography, on, outcome

WORDS = ["the", "quick", "brown", "fox"]


class Posted(Message, frozen=True, kw_only=True):
    TOPIC = "examples.words.posted.v1"
    post: str
    text: str

    @property
    def key(self) -> str:
        return self.post


class WordSeen(Message, frozen=True, kw_only=True):
    TOPIC = "examples.words.seen.v1"
    word: str

    @property
    def key(self) -> str:
        return self.word


class WordCount(Row, frozen=True, kw_only=True):
    count: int = 0


WORD_COUNTS = Table("word-counts", WordCount)
words = Service("words")


@words.handler(sends=[WordSeen])
def shuffle_words(posted: Posted) -> Outcome:
    return outcome(send=[WordSeen(word=word) for word in posted.text.split()])


@words.handler(count=WORD_COUNTS)
def count_words(seen: WordSeen, count: WordCount | None) -> Outcome:
    """Count words from blog post article body."""
    return outcome(count=WordCount(count=(count or WordCount()).count + 1))


wiring = choreography(on(Posted, shuffle_words), on(WordSeen, count_words))
app = Worker(wiring)


async def main() -> None:
    async with app.client("sender") as client:
        for number in range(100):
            await client.send(
                Posted(post=f"post-{number}", text=" ".join(WORDS)), message_id=f"post-{number}"
            )


if __name__ == "__main__":
    asyncio.run(main())
