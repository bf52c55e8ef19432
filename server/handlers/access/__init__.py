"""The one place where requests are held against what their senders may do.

`guard` puts an authorizer in front of every handler of a dispatch table; `rules` says, from the
registry and a table beside it, what each API asks and what a denied caller is told. Without an
authorizer none of this is loaded.
"""
