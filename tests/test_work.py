"A reader's kernels are kept, and come back."
from types import SimpleNamespace

import pytest

from numba_matmul import exercise, work


def test_a_kernel_comes_back_as_it_was_accepted(monkeypatch, tmp_path):
    monkeypatch.setattr(work, "FOLDER", tmp_path/"my_work")
    with pytest.raises(LookupError, match="exercise 01"): work.mine(1)
    one, given = exercise.exercises()["01"], []
    kernel = one.build("reference")
    work.keep("01", kernel, True)
    assert not work.FOLDER.exists()  # outside of Jupyter
    monkeypatch.setattr(work, "shell", lambda: SimpleNamespace(kernel=1, set_next_input=given.append))
    work.keep("01", kernel, True)
    work.keep("02", kernel, False)
    assert "accepted" in work.mine("01") and "last graded" in work.mine(2)
    assert given[0] == given[1] and one.source("reference").strip() in given[0]
    assert list(work.done()) == ["01"] and "passed 1 of " in exercise.so_far()


def test_a_stop_is_a_verdict(monkeypatch):
    def stopped(one, subject, found): raise KeyboardInterrupt
    monkeypatch.setattr(exercise, "verdicts", stopped)
    board = exercise.grade("01", exercise.exercises()["01"].build("reference"))
    assert "✗ ends" in repr(board) and "you stopped it" in repr(board)
