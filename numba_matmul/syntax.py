"""Syntax trees of source text."""
import ast
import threading

_PARSING = threading.Lock()  # Python 3.11 loses count of a tree's depth where two threads make one at once


def parsed(
    source,  # text
) -> ast.Module:
    "Its syntax tree."
    with _PARSING: return ast.parse(source)
