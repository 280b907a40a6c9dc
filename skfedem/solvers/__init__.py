"""How the fixed points of EM are found: one file per algorithm, and the one round loop.

A solver is written against the contract of a model (``skfedem.models._base``) and never imports a
concrete model.
"""
