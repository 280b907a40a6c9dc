"""What is fitted: curved exponential families as pure functions of arrays, one package per model.

``_base.py`` states the contract that every solver relies on.
"""
