"""Syntax trees of source text."""
import ast
import threading

_PARSING = threading.Lock()  # Python 3.11 miscounts a tree's depth if two threads parse at once


def parsed(
    source,  # text
) -> ast.Module:
    "Its syntax tree."
    with _PARSING: return ast.parse(source)
