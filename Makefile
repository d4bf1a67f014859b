# make ladder            every kernel, checked, next to cuBLAS (no GPU: in the simulator, with recorded speeds)
# make test              everything CI checks; needs no GPU
# make lesson N=05       one lesson: its notebook, all paths of its kernel, all variants of its exercises
# make lab               the course in JupyterLab, at its first page (on a server: make lab ARGS=--no-browser)
# make grade             tests the exercises' judges on known solutions and mistakes (ARGS="02 03": only these)
# make profile KERNEL=05 one kernel under Nsight Compute
# make gpu STAGE=…       on a GPU machine: tune, ladder, calls, model, notebooks, ncu, check or several; writes results to commit
#                        (a subset: STAGE=notebooks NOTEBOOKS="04* 05*", STAGE=ncu KERNELS="04 05",
#                        STAGE=tune KERNELS="9 10" BUDGET=60, the seconds for each,
#                        STAGE=check KERNELS=16 PARTS="new_threads large",
#                        STAGE=notebooks MISSING=1: only experiments that the GPU's card lacks,
#                        STAGE=several GPUS=2: lesson 32's, on a card of their own)
# make mutants           plants mistakes in the kernels: is each one found? (ARGS="--count 0": all; another run goes on from there)
# make site              the course as a website, in _docs
# make site-check        opens every page of the website in a headless Chromium
# make same-code BASE=…  is the machine code the same as at another commit? (STAMP=1: then its speeds stay valid)
# make readme            updates README's table and picture from the result cards
# make pages             updates what notebooks show of the result cards, and figures; no GPU (PAGES="01*": only these)
# make clean             removes .venv and everything that was built; make help shows this
#
# make torch             installs PyTorch, which lessons 30 to 32 and the tests need, on a machine without a GPU
#
# The first call creates .venv. PYTHON=python3 uses that interpreter instead and installs nothing.

SHELL := /bin/bash
.DEFAULT_GOAL := ladder
.PHONY: ladder torch test lesson grade mutants lab site site-check profile same-code pages gpu gpu-tune gpu-ladder gpu-calls gpu-model gpu-notebooks gpu-ncu gpu-check gpu-several readme setup clean help

# Powers of two; sizes that no tile fits; then m×n×k with few rows, few columns, a long sum, and a short one.
SIZES := 256,512,1024,2048,4096,8192,1000,2047,3000,4092,4095,4097,5000,6000,6144,128x8192x4096,8192x128x4096,256x256x65536,16384x16384x64
# Exits with a one-line message if the interpreter is too old, or too new for the tested packages.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "Python 3.11 to 3.14 is needed; %s is %s" % (sys.executable, sys.version.split()[0]))

ifdef PYTHON
PY := $(PYTHON)
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
setup:
	@command -v $(firstword $(PYTHON)) > /dev/null || { echo "PYTHON=$(PYTHON): there is no such program" >&2; exit 2; }
	@$(PYTHON) -c '$(FITS)' && PYTHON="$(PYTHON)" $(PYTHON) tools/set_up.py --check $(NEEDS)
else
PY := .venv/bin/python
SYSTEM_PATH := $(PATH)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
setup: .venv/ready
WITH_ALL := test lesson mutants site site-check profile same-code pages gpu-tune gpu-ladder gpu-calls gpu-notebooks gpu-ncu gpu-check
PART :=
$(WITH_ALL): .venv/all
$(WITH_ALL): PART := --all
endif

# What these need besides the requirements in settings.ini.
lab: NEEDS := jupyterlab
torch mutants profile same-code gpu-tune gpu-ladder gpu-calls gpu-ncu gpu-check: NEEDS := torch
site: NEEDS := torch sphinx myst-nb sphinx-book-theme
site-check: NEEDS := playwright
test lesson: NEEDS := torch nbdev execnb jupyterlab sphinx myst-nb sphinx-book-theme pytest pytest-xdist hypothesis ruff
gpu-notebooks pages: NEEDS := torch nbdev execnb

# The first interpreter that fits creates the environment.
.venv/ready: settings.ini setup.py constraints.txt
	@PATH="$(SYSTEM_PATH)"; for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	   command -v $$python > /dev/null && $$python -c '$(FITS)' 2> /dev/null && exec $$python tools/set_up.py $(PART); done; \
	 if command -v python3 > /dev/null; then python3 -c '$(FITS)'; else echo "Python 3.11 to 3.14 is needed, and there is no python3 here" >&2; fi; exit 1

.venv/all: .venv/ready
	@.venv/bin/python tools/set_up.py --all

ladder: setup
	@$(PY) -m numba_matmul.ladder

torch: setup
	@$(PY) -c "import torch" 2> /dev/null || $(PY) tools/set_up.py --torch

# Each core runs its own test: threads of numpy and PyTorch would get in each other's way.
test lesson: export OMP_NUM_THREADS := 1
# Hundreds of processes import the same packages: keep their bytecode, whatever the shell says.
test lesson: export PYTHONDONTWRITEBYTECODE :=

test: setup
	$(PY) -m pytest -q -n logical --maxschedchunk 1 tests

lesson: setup
	@$(PY) tools/lesson.py $(N)

grade: setup
	@$(PY) -m numba_matmul.exercise $(ARGS)

mutants: setup
	@$(PY) tools/mutants.py $(ARGS)

# The root is the repository, so that links to scripts work; the address Jupyter prints opens the lesson too.
# In a container you're often root, which Jupyter must be told is intentional. tools/jupyter has its settings, and
# a kernel that explains a missing name.
lab: setup
	@$(PY) -m nbformat.sign nbs/*.ipynb nbs/library/*.ipynb > /dev/null  # JupyterLab shows all outputs of these
	PYTHONPATH="$(CURDIR)/tools/jupyter$${PYTHONPATH:+:$$PYTHONPATH}" JUPYTER_PATH="$(CURDIR)/tools/jupyter" \
	   JUPYTER_CONFIG_PATH="$(CURDIR)/tools/jupyter" $(PY) -m jupyterlab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/nbs/00_prep1_numba_cuda.ipynb \
	   $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

site: setup
	@$(PY) website/build.py

site-check: setup
	@$(PY) website/check.py $(ARGS)

readme: setup
	$(PY) -m numba_matmul.ladder --readme

pages: setup
	@set -f; $(PY) tools/pages.py $(PAGES)

ifeq ($(filter profile,$(MAKECMDGOALS))$(KERNEL),profile)
$(error which kernel? For example, make profile KERNEL=05)
endif
profile: setup
	@$(PY) tools/profile_kernels.py $(KERNEL)

same-code: setup
	@$(PY) tools/same_code.py $(BASE) $(if $(STAMP),--stamp)

gpu:
	@case "$(STAGE)" in tune|ladder|calls|model|notebooks|ncu|check|several) $(MAKE) --no-print-directory gpu-$(STAGE);; \
	 *) echo "make gpu STAGE=tune|ladder|calls|model|notebooks|ncu|check|several" >&2; exit 2;; esac

# Pages show the cards' numbers, so a stage that changes a card ends with this.
AND_PAGES := , and then what make pages changes

gpu-tune: setup
	@for number in $(or $(KERNELS),all); do $(PY) -m numba_matmul.ladder --tune $$number --budget $(or $(BUDGET),120) || exit 1; done
	@echo "To commit: nbs/results$(AND_PAGES)"

gpu-ladder: setup
	$(PY) -m numba_matmul.ladder --size $(SIZES) --json card
	$(PY) -m numba_matmul.ladder --readme
	@echo "To commit: nbs/results README.md$(AND_PAGES)"

gpu-calls: setup
	$(PY) -m numba_matmul.ladder --calls
	$(PY) -m numba_matmul.ladder --readme
	@echo "To commit: nbs/results README.md$(AND_PAGES)"

gpu-model: setup
	@$(PY) tools/model_gpu.py
	@echo "Then run python tools/predictions.py. To commit: nbs/results, what it changes$(AND_PAGES)"

gpu-notebooks: setup
	@set -f; $(if $(MISSING),MATMUL_MISSING=1) $(PY) tools/run_notebooks.py $(NOTEBOOKS)
	$(PY) -m numba_matmul.ladder --readme
	@echo "To commit: nbs README.md"

gpu-several: setup
	$(PY) -m torch.distributed.run --standalone --nproc-per-node $(or $(GPUS),2) tools/several_gpus.py $(PARTS)
	@echo "To commit: nbs/results$(AND_PAGES)"

gpu-ncu: setup
	$(PY) tools/agree.py $(KERNELS)
	$(PY) tools/profile_kernels.py --card $(KERNELS) > /dev/null
	@echo "Reports to open in Nsight Compute: profiles/. To commit: nbs/results$(AND_PAGES)"

gpu-check: setup
	$(PY) tools/check_gpu.py $(KERNELS) $(PARTS)
	@$(if $(KERNELS)$(PARTS),:,echo "To commit: nbs/results$(AND_PAGES)")

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

clean:
	rm -rf .venv build _docs *.egg-info profiles
