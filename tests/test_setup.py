"""What `make` does before anything else: it finds an interpreter, creates .venv, and reports what it
downloads and why it fails."""
import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import yaml
from conftest import ROOT, environment
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

INI = ConfigParser(delimiters=["="])
INI.read(ROOT/"settings.ini", encoding="utf-8")
MIN, MAX = (tuple(map(int, text.split(", "))) for text in re.search(
    r"not \((\d, \d+)\) <= sys.version_info < \((\d, \d+)\)",
    (ROOT/"Makefile").read_text(encoding="utf-8")).groups())
PYTHONS = [f"{MIN[0]}.{minor}.0" for minor in range(MIN[1], MAX[1])]


def requirements(text):
    return [Requirement(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def pins(name):
    return {canonicalize_name(pin.name): pin for pin in requirements((ROOT/name).read_text(encoding="utf-8"))}


PINS = pins("constraints.txt")


def installed(name):
    "The distribution of this name, if it is the tested version."
    try: found = distribution(name)
    except PackageNotFoundError: return None
    pin = PINS.get(canonicalize_name(name))
    return found if pin is None or pin.specifier.contains(found.version, prereleases=True) else None


def version_of(name):
    try: return distribution(name).version
    except PackageNotFoundError: return None


def test_the_pythons_are_the_same_everywhere():
    workflow = yaml.safe_load((ROOT/".github"/"workflows"/"ci.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert jobs["python"] == [python.removesuffix(".0") for python in PYTHONS]
    assert INI["DEFAULT"]["min_python"] == ".".join(map(str, MIN))
    assert f"3.{MIN[1]} to 3.{MAX[1] - 1}" in (ROOT/"Makefile").read_text(encoding="utf-8")


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT/"CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["title"]) == (INI["DEFAULT"]["version"], INI["DEFAULT"]["title"])
    assert citation["authors"] == [{"name": INI["DEFAULT"]["author"]}]


def test_the_tested_set_can_be_installed_on_every_python():
    "4.1.1 of soupsieve asked for Python 3.11.5: nothing could be installed on Debian 12, which has 3.11.2."
    asked = {name: found.metadata.get("Requires-Python", "") for name in PINS if (found := installed(name))}
    assert len(asked) > 100
    assert not {(name, text, python) for name, text in asked.items() for python in PYTHONS
                if not SpecifierSet(text).contains(python)}


@pytest.mark.skipif(not (ROOT/".venv"/"ready").exists() or sys.prefix != str(ROOT/".venv"),
                    reason="this environment was not made by make")
def test_the_environment_holds_the_tested_set():
    "Otherwise these tests would look at packages other than the pinned ones."
    named = pins(".venv/constraints.txt")  # without NVIDIA's packages if the driver is for CUDA 12
    assert not [f"{name} {found}" for name in named
                if (found := version_of(name)) and not installed(name)], "run make"


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("system", [("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"),
                                    ("darwin", "Darwin", "arm64")], ids=lambda s: f"{s[1]}-{s[2]}")
def test_everything_that_is_needed_is_pinned(python, system):
    """Starting from the requirements, as far as the metadata of the installed packages shows. Unpinned
    packages can change without notice."""
    there = default_environment() | dict(python_full_version=python, python_version=python.removesuffix(".0"),
                                         os_name="posix", sys_platform=system[0], platform_system=system[1],
                                         platform_machine=system[2])
    todo = [(need, "settings.ini") for key in ("requirements", "dev_requirements", "cu13_requirements")
            for need in requirements(INI["DEFAULT"][key])]
    seen, wrong = set(), []
    while todo:
        need, by = todo.pop()
        name = canonicalize_name(need.name)
        if need.marker and by == "settings.ini" and not need.marker.evaluate(there): continue
        if name not in PINS: wrong.append(f"{by} needs {need}, which constraints.txt does not name")
        elif not all(need.specifier.contains(pin.version, prereleases=True)
                                              for pin in PINS[name].specifier):
            wrong.append(f"{by} needs {need}, and constraints.txt says {PINS[name]}")
        if (name, *need.extras) in seen: continue
        seen.add((name, *need.extras))
        found = installed(name)
        for deeper in map(Requirement, found.requires or () if found else ()):
            if any(deeper.marker is None or deeper.marker.evaluate(there | dict(extra=extra))
                   for extra in ("", *need.extras)): todo.append((deeper, name))
    assert len(seen) > 100 and not wrong, "\n".join(wrong)


def test_the_packages_of_cuda_12_exist():
    "On PyPI, NVIDIA's packages for CUDA 12 end in -cu12. The others begin with CUDA 13."
    for need in requirements(INI["DEFAULT"]["cu12_requirements"]):
        name = canonicalize_name(need.name)
        if name.startswith("nvidia-") and not name.endswith("-cu12"):
            assert need.specifier.contains(*(pin.version for pin in PINS[name].specifier)), need


@pytest.fixture
def project(tmp_path):
    """A copy of the files `make` reads, and a function to call it: no environment yet, no package index, no
    pip settings."""
    for name in ("Makefile", "settings.ini", "setup.py", "constraints.txt", "pyproject.toml", "README.md",
                 "util.py"): shutil.copy(ROOT/name, tmp_path)
    for name in ("tools", "numba_matmul", "nbs", "empty", "bin"): (tmp_path/name).mkdir()
    shutil.copy(ROOT/"tools"/"set_up.py", tmp_path/"tools")
    (tmp_path/"bin"/"python3").symlink_to(getattr(sys, "_base_executable", sys.executable))
    for name in "sed", "rm": (tmp_path/"bin"/name).symlink_to(shutil.which(name))

    def make(*args, path=(tmp_path/"bin",), **more):
        dropped = ("PYTHON", "MAKEFLAGS", "MAKELEVEL", "PYTHONPATH", "VIRTUAL_ENV", "KERNEL")
        env = {name: value for name, value in environment().items()
               if name not in dropped and not name.startswith("PIP_")}
        env |= dict(PATH=os.pathsep.join(map(str, path)), PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1",
                    PIP_FIND_LINKS=str(tmp_path/"empty")) | more
        command = [shutil.which("make"), *args]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    make.root = tmp_path
    return make


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink(): path.unlink()
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def told(done):
    return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("make")]


def test_make_finds_its_python_in_the_environment_that_it_made(project):
    script(project.root/".venv"/"bin"/"python", 'echo "called with $*"\n')
    for name in "ready", "all": (project.root/".venv"/name).touch()
    stages = [f"gpu STAGE={stage}" for stage in ("tune", "ladder", "calls", "notebooks", "ncu", "check")]
    for target in ("ladder", "lab", "site", "site-check", "readme", "test", "profile KERNEL=05",
                   "same-code BASE=main", *stages):
        done = project(*target.split())
        assert done.returncode == 0 and "called with" in done.stdout, (target, done.stderr)


def test_lab_opens_the_first_lesson_and_the_links_stay_within_its_root(project):
    script(project.root/".venv"/"bin"/"python", 'echo "called with $*"\n')
    (project.root/".venv"/"ready").touch()
    said = project("lab", "ARGS=--no-browser").stdout
    page = re.search(r"called with -m jupyterlab .*--LabApp.default_url=/lab/tree/(\S+) --no-br", said)[1]
    assert (page == min(f"nbs/{path.name}" for path in (ROOT/"nbs").glob("*.ipynb"))
            and f"--ServerApp.root_dir={project.root} " in said)


def test_help_names_every_target_that_a_reader_calls(project):
    said = project("help").stdout
    assert (all(f"make {target} " in said
                for target in ("ladder", "test", "lab", "site", "profile", "gpu", "readme", "clean"))
            and "PYTHON=python3" in said)


def test_profile_without_a_kernel_is_one_line_before_anything_is_set_up(project):
    done = project("profile")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "make profile KERNEL=05" in done.stderr
    assert not (project.root/".venv").exists() and not done.stdout


OLD = ('exec {python} -c "import sys; sys.version_info = ({version}); sys.version = \'{text} (main)\'; '
       'exec(sys.argv[2])" "$@"\n')


@pytest.mark.parametrize("version,text", [
    ((3, 10, 6), "3.10.6"), ((*MAX, 0), "{}.{}.0".format(*MAX)), ((2, 7, 18), "2.7.18")])
def test_a_python_that_does_not_fit_is_refused_before_anything_is_made(version, text, project):
    script(project.root/"bin"/"python3",
           OLD.format(python=sys.executable, version=str(version)[1:-1], text=text))
    for args in (), (f"PYTHON={project.root/'bin'/'python3'}",):
        done = project(*args)
        assert (done.returncode == 2 and len(told(done)) == 1
                and "Python 3.11 to 3.14 is needed" in done.stderr
                and text in done.stderr), done
    assert not (project.root/".venv").exists()


def test_no_python_at_all_is_one_line(project):
    done = project(path=(project.root/"empty",))
    assert done.returncode == 2
    assert told(done) == ["Python 3.11 to 3.14 is needed, and there is no python3 here"]


def test_a_python_that_fits_is_found_beside_an_old_python3(project):
    script(project.root/"bin"/"python3", OLD.format(python=sys.executable, version="3, 10, 6", text="3.10.6"))
    script(project.root/"bin"/"python3.12", 'case "$1" in -c) exit 0;; *) echo "python3.12 $*";; esac\n')
    assert project().stdout.startswith("python3.12 tools/set_up.py\n")


def test_without_the_venv_module_one_line_says_what_to_install(project):
    (project.root/"sitecustomize.py").write_text("import sys\nsys.modules['ensurepip'] = None\n")
    done = project(PYTHONPATH=str(project.root))
    assert (done.returncode == 2 and len(told(done)) == 1
            and f"apt install python3.{sys.version_info[1]}-venv" in done.stderr), done
    assert not (project.root/".venv").exists()


def test_the_size_comes_first_and_a_failure_shows_pips_reason(project):
    "With the real pip, which has no index here."
    for _ in range(2):  # the first call doesn't leave anything that looks finished
        done = project("ladder")
        first, last = told(done)[0], done.stderr.splitlines()
        assert first.startswith("Setting up .venv with Python") and "0.3 GB to download" in first
        assert (done.returncode == 2 and "ERROR: " in done.stderr and "numba" in done.stderr
                and "Traceback" not in done.stdout + done.stderr)
        assert (last[-2].startswith("pip couldn't install the packages; see its reason above. ")
                and last[-2].endswith("make again: it continues from here."))
        assert not (project.root/".venv"/"ready").exists()


def test_what_the_tests_need_is_installed_at_once(project):
    first, *_, last = told(project("test"))
    assert first.startswith("Setting up .venv") and "0.7 GB to download, 2.2 GB on disk" in first
    assert last.endswith("make again: it continues from here.")


PIP = """
case "$*" in *"pip --version"*|*"config list"*|*"--no-deps"*) exit 0;; \
*"pip install"*) echo "Downloading torch (526.6 MB)";; esac
"""


def test_what_pip_says_is_shown_and_its_status_kept(project):
    ready = project.root/".venv"/"ready"
    script(project.root/".venv"/"bin"/"python", PIP)
    (project.root/".venv"/"lib"/"python3"/"site-packages"/"torch").mkdir(parents=True)
    done = project("setup")
    assert done.returncode == 0 and not done.stderr and ready.exists(), done.stderr
    assert told(done)[:2] == ["Updating .venv to match settings.ini and constraints.txt",
                              "Downloading torch (526.6 MB)"]
    script(project.root/".venv"/"bin"/"python", PIP + "echo 'ERROR: No space left on device' >&2; exit 3\n")
    os.utime(ready, (0, 0))  # from an older constraints.txt
    done = project("setup")
    assert (done.returncode == 2 and not ready.exists()
            and done.stderr.startswith("ERROR: No space left on device\npip couldn't install the packages"))


ECHO = """
case "$*" in *"pip install"*) echo "$*";; *"config list"*) echo "$PIP_EXTRA_INDEX_URL";; \
*"import torch"*) exit 1;; *set_up*) exec {} "$@";; esac
"""


@pytest.mark.parametrize("gpu", [False, True])
def test_pytorch_is_installed_where_there_is_a_driver_or_it_is_needed(gpu, project):
    script(project.root/".venv"/"bin"/"python", ECHO.format(sys.executable))
    if gpu: script(project.root/"bin"/"nvidia-smi", "echo 'CUDA Version: 13.0'")
    said = project("setup").stdout
    assert (" torch" in said) is False and (".[cu13]" in said) == gpu and "jupyterlab" in said
    assert ("nvidia-nvvm>=13" in said and "nvidia-cuda-nvrtc" not in said) != gpu
    said = project("torch").stdout
    assert ".[cu13]" in said and ("whl/cpu" in said) != gpu and "PyTorch" in said
    said = project("test").stdout
    assert ".[dev,cu13]" in said and ("whl/cpu" in said) != gpu and "what the tests need" in said
    assert (project.root/".venv"/"all").exists()
    assert "whl/cpu" not in project("torch", PIP_EXTRA_INDEX_URL="https://example.org/whl/other").stdout


def test_an_environment_that_lacks_packages_is_one_line_with_the_command(project):
    script(project.root/"bin"/"mine", f'exec {sys.executable} -S "$@"\n')  # without site-packages
    for target, package in (("ladder", "numba"), ("lab", "jupyterlab"), ("site", "sphinx"),
                            ("test", "pytest-xdist"),
                            ("gpu STAGE=ladder", "torch"), ("gpu STAGE=notebooks", "nbdev")):
        done = project(*target.split(), f"PYTHON={project.root/'bin'/'mine'}")
        assert done.returncode == 2 and len(told(done)) == 1, done
        line = told(done)[0]
        assert (" lacks numba, " in line and f"{package}," in line.replace(".", ",")
                and ("jupyterlab" in line) == (target in ("lab", "test")))
        assert re.search(r'Install with: \S+/mine -m pip install -e "\.\[dev,cu1[23]\]"', line)


def test_a_path_that_leads_nowhere_is_one_line(project):
    done = project("ladder", "PYTHON=/no/such/python")
    assert done.returncode == 2 and told(done) == ["PYTHON=/no/such/python: there is no such program"]


def test_an_environment_of_the_readers_own_is_used_as_it_is(project):
    (project.root/"numba_matmul"/"ladder.py").write_text("print('the ladder')")
    done = project("ladder", f"PYTHON={sys.executable}")
    assert done.returncode == 0 and done.stdout == "the ladder\n", done.stderr
    assert not (project.root/".venv").exists()


def test_what_nbdev_leaves_behind_is_not_committed():
    names = ([f"nbs/{name}" for name in ("_quarto.yml", "nbdev.yml", "sidebar.yml")]
             + ["_proc/index.ipynb", "_docs/index.html"])
    done = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 128: pytest.skip("not a clone")
    assert done.stdout.split() == names
