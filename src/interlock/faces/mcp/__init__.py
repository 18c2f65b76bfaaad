"""The tools of Interlock for models, over the Model Context Protocol.

jsonrpc.py        the messages of the protocol, and the era that each is of
protocol.py       a message in, messages out: both eras; knows no tool and no store
tools.py          the tools, made from the declarations of operations
agent.py          the agent behind a connection: its session, its calls, the mail for it
reading.py        prompts and resources
subscriptions.py  what a connection has subscribed to, in both eras
updates.py        which resources changed: a thread that follows the store
words.py          outcomes in words for a model: bounded, with the next step
stdio.py          ``interlock mcp``: the transport over standard input and output
"""
