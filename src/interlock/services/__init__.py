"""Services join the pure core to a store: they choose what to read, and the runner commits."""
