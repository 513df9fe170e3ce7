"""Dead letters, written to the brokers that librdkafka has built in."""

from tideline_ingest.batch import Received
from tideline_ingest.dead_letters import DeadLetters
from tideline_ingest.screening import Rejected


def test_more_dead_letters_than_the_queue_of_the_client_holds():
    """A batch of so many was tried again for ever."""
    letters = DeadLetters({"test.mock.num.brokers": "1", "queue.buffering.max.messages": "10000"}, "aside", "app", 30.0)
    try:
        letters.write([Rejected(Received(("t", 0), offset, b"k", b"v"), "no JSON") for offset in range(10_001)])
    finally:
        letters.close()
