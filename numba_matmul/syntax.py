"""Syntax trees of source text."""
import ast
import threading

_PARSING = threading.Lock()  # Python 3.11 miscounts a tree's depth if two threads parse at once


def parsed(
    source,  # text
) -> ast.Module:
    "Its syntax tree."
    with _PARSING: return ast.parse(source)


def copied(node):
    "A syntax tree, or a part of one, once more. (`copy.deepcopy` takes ten times as long.)"
    made = type(node)()
    for name, value in vars(node).items():
        if isinstance(value, ast.AST): value = copied(value)
        elif isinstance(value, list): value = [copied(x) if isinstance(x, ast.AST) else x for x in value]
        setattr(made, name, value)
    return made
