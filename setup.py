"Passes the settings in settings.ini to setuptools."
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

here = Path(__file__).parent
ini = ConfigParser(delimiters=["="])
ini.read(here/"settings.ini", encoding="utf-8")
cfg = ini["DEFAULT"]


def lines(key):
    "The requirements under `key`, one per line, without comments."
    return [line.strip() for line in cfg[key].splitlines()
            if line.strip() and not line.strip().startswith("#")]


setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=(here/"README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    keywords=cfg["keywords"].split(),
    license="MIT",
    author=cfg["author"],
    url=cfg["git_url"],
    classifiers=["Development Status :: 3 - Alpha", "Intended Audience :: Developers",
                 "Intended Audience :: Education",
                 "Programming Language :: Python :: 3", "Environment :: GPU :: NVIDIA CUDA",
                 "Framework :: Jupyter"],
    python_requires=">=" + cfg["min_python"],
    # a wheel contains the result cards and their schema as package data; a checkout reads them where
    # they are
    packages=[*find_packages(include=[cfg["lib_path"], f"{cfg['lib_path']}.*"]),
              f"{cfg['lib_path']}.results"],
    package_dir={f"{cfg['lib_path']}.results": "nbs/results"},
    package_data={f"{cfg['lib_path']}.results": ["*.json", "schema/*.json", "several/*.json"],
                  cfg["lib_path"]: ["static/*.js"]},
    py_modules=["util"],
    install_requires=lines("requirements"),
    extras_require={extra: lines(extra + "_requirements") for extra in ("dev", "cu13", "cu12")},
    entry_points={"console_scripts": lines("console_scripts"),
                  "nbdev": [f"{cfg['lib_name']}={cfg['lib_path']}._modidx:d"]},
    zip_safe=False,
)
