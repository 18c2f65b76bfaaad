"""Hold a lock while you work, and pass its token to the system that the lock protects.

The token rises with every holder.  A system that stores the highest token can refuse an
agent that slept through the end of its lock and wakes up too late.
"""

import tempfile

import interlock


class Registry:
    """A system that the lock protects; it refuses old holders."""

    newest = 0
    image = ""

    def push(self, image: str, fencing_token: int) -> str:
        """Accept an image unless a later token was used."""
        if fencing_token < self.newest:
            return f"refused: token {fencing_token} is older than {self.newest}"
        self.newest, self.image = fencing_token, image
        return "pushed"


registry = Registry()
with (
    tempfile.TemporaryDirectory() as folder,
    interlock.connect(f"{folder}/store.db", agent="ada") as ada,
    interlock.connect(f"{folder}/store.db", agent="bob") as bob,
):
    with ada.lock("deploy") as held:
        late = held.token
        print("ada:", registry.push("v1", fencing_token=held.token))
    with bob.lock("deploy") as held:
        print("bob:", registry.push("v2", fencing_token=held.token))
    print("ada, too late:", answer := registry.push("v1 again", fencing_token=late))
assert answer.startswith("refused")
assert registry.image == "v2"
