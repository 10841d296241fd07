"""Small tools that every room may use: atomic files, process identities, the console parser, proofs of the token.

`console_parser` and `processes` are standard library only, because the keeper and the probe use them.
"""
