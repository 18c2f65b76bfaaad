"""Send an alert, a question, an answer and a stop between agents.

Bob may be in another process, or asleep: the store delivers a message until he acknowledges it.
"""

import tempfile
import threading

import interlock

received: list[str] = []


def bob_serves(place: str) -> None:
    """Receive messages; the loop acknowledges each one when it asks for the next."""
    with interlock.connect(place, agent="bob") as bob, bob.messages.recv() as inbox:
        for message in inbox:
            received.append(message.kind)
            if message.kind == "query":
                message.reply("https://example.org/v2")
            if message.kind == "stop":
                message.ack()
                return


with tempfile.TemporaryDirectory() as folder:
    place = f"{folder}/store.db"
    with interlock.connect(place, agent="ada") as ada, interlock.connect(place, "bob") as bob:
        bob.messages.subscribe("build/failed")
        ada.messages.alert("build/failed", {"branch": "main"})
        serving = threading.Thread(target=bob_serves, args=(place,))
        serving.start()
        answer = ada.messages.query("bob", "API base URL?", timeout="30s")
        print(answer)
        ada.messages.stop("bob", "that is all")
        serving.join()
assert isinstance(answer, interlock.QueryAnswered)
assert received == ["alert", "query", "stop"]
