# make ladder            every kernel, checked and beside cuBLAS (without a GPU: in the simulator, with recorded speeds)
# make test              all that CI checks; needs no GPU
# make lab               the course in JupyterLab
# make profile KERNEL=01 one kernel under Nsight Compute
# make gpu STAGE=…       on a GPU machine: tune, ladder, notebooks, ncu or check; writes results to commit
#                        (only some of them: STAGE=notebooks NOTEBOOKS="04* 05*", STAGE=ncu KERNELS="04 05",
#                        STAGE=tune KERNELS="9 10" BUDGET=60, in seconds for each)
# make readme            README's table and picture, from the result cards
#
# Each makes .venv at its first call. PYTHON=python3 uses that interpreter instead and installs nothing.

SHELL := /bin/bash
.DEFAULT_GOAL := ladder
.PHONY: ladder test lab profile gpu gpu-tune gpu-ladder gpu-notebooks gpu-ncu gpu-check readme setup clean

# Powers of two; sizes that fit no tile; then m×n×k with few rows, few columns, a long sum, and a short one.
SIZES := 256,512,1024,2048,4096,8192,1000,2047,3000,4092,4095,4097,5000,6000,6144,128x8192x4096,8192x128x4096,256x256x65536,16384x16384x64
ifdef PYTHON
PY := $(PYTHON)
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
setup:
else
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
setup: .venv/ready
endif

# The extra follows the driver: cu12 where it knows no CUDA 13, else cu13 (also without a GPU: the compiler tool uses it).
.venv/ready: settings.ini setup.py constraints.txt compiler.txt
	@echo "Setting up .venv (once; a few minutes)"
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	@test -x .venv/bin/python || python3 -m venv .venv
	@extra=cu13; nvidia-smi 2>/dev/null | grep -q 'CUDA Version: 12' && extra=cu12; \
	 grep -v -E "^(#|$$)$$([ $$extra = cu12 ] && echo '|^(cuda-|nvidia-)')" constraints.txt > .venv/constraints.txt; \
	 .venv/bin/python -m pip install -q --disable-pip-version-check -c .venv/constraints.txt -e ".[dev,$$extra]" || exit 1; \
	 [ $$extra = cu12 ] || [ $$(uname) = Darwin ] || .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps -r compiler.txt
	@touch $@

ladder: setup
	@$(PY) -m numba_matmul.ladder

test: setup
	$(PY) -c "from nbdev.test import nbdev_test; nbdev_test(n_workers=2, do_print=True)"
	$(PY) -m pytest -q -n 2 tests

lab: setup
	$(PY) -m jupyterlab nbs

readme: setup
	$(PY) -m numba_matmul.ladder --readme

profile: setup
	@$(PY) tools/profile.py $(KERNEL)

gpu:
	@case "$(STAGE)" in tune|ladder|notebooks|ncu|check) $(MAKE) --no-print-directory gpu-$(STAGE);; \
	 *) echo "make gpu STAGE=tune|ladder|notebooks|ncu|check" >&2; exit 2;; esac

gpu-tune: setup
	@for number in $(or $(KERNELS),9 10 11 12); do $(PY) -m numba_matmul.ladder --tune $$number --budget $(or $(BUDGET),120) || exit 1; done
	@echo "To commit: nbs/results"

gpu-ladder: setup
	$(PY) -m numba_matmul.ladder --size $(SIZES) --json card
	$(PY) -m numba_matmul.ladder --readme
	@echo "To commit: nbs/results README.md"

gpu-notebooks: setup
	@set -f; $(PY) tools/run_notebooks.py $(NOTEBOOKS)
	@echo "To commit: nbs"

gpu-ncu: setup
	$(PY) tools/agree.py $(KERNELS)
	$(PY) tools/profile.py --card $(KERNELS) > /dev/null
	@echo "Reports to open in Nsight Compute: profiles/. To commit: nbs/results"

gpu-check: setup
	$(PY) tools/check_gpu.py $(KERNELS)
	@$(if $(KERNELS),:,echo "To commit: nbs/results")

clean:
	rm -rf .venv build *.egg-info profiles
