"A reader's kernels are kept, and come back."
from types import SimpleNamespace

import pytest

from numba_matmul import exercise, work


def test_a_kernel_comes_back_as_it_was_accepted(monkeypatch, tmp_path):
    monkeypatch.setattr(work, "FOLDER", tmp_path/"my_work")
    assert exercise.mine(1) == ("You haven't graded a kernel in exercise 01 yet. Once you have, "
                                "mine(\"01\") returns it.")
    with pytest.raises(ValueError, match="there is no exercise '99'"): exercise.mine("99")
    one, given = exercise.exercises()["01"], []
    kernel = one.build("reference")
    work.keep("01", kernel, True)
    assert not work.FOLDER.exists()  # outside of Jupyter
    monkeypatch.setattr(work, "shell", lambda: SimpleNamespace(kernel=1, set_next_input=given.append))
    work.keep("01", kernel, True)
    work.keep("02", kernel, False)
    assert "accepted" in exercise.mine("01") and "last graded" in exercise.mine(2)
    assert given[0] == given[1] and one.source("reference").strip() in given[0]
    assert list(work.done()) == ["01"] and "passed 1 of " in exercise.so_far()


def test_a_stop_is_a_verdict(monkeypatch):
    def stopped(*args, **more): raise KeyboardInterrupt
    one = exercise.exercises()["01"]
    with monkeypatch.context() as patch:
        patch.setattr(exercise, "verdicts", stopped)
        board = exercise.grade("01", one.build("reference"))
    assert "✗ ends" in repr(board) and "you stopped it" in repr(board)
    # once all has passed, too
    monkeypatch.setattr(exercise, "predict", stopped)
    board = exercise.grade("01", one.build("reference"))
    assert board.passed and "· speed" in repr(board) and "you stopped it" in repr(board)


def test_nothing_is_compiled_for_the_speed_before_a_kernel_is_right(monkeypatch):
    compiled, one = [], exercise.exercises()["01"]
    monkeypatch.setattr(exercise, "compile_for", lambda *args: compiled.append(args))
    wrong = next(mutant for mutant in one.mutants if mutant.verdict == "correct")
    assert not exercise.grade("01", one.build(wrong)).passed and not compiled
