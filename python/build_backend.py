"""Builds the wheel: maturin builds the extension module, and the binary `dtrain` goes in beside it, from the same sources.

`DTRAIN_WHEEL_PROFILE=dev` builds both as tests do, for whoever has that built already.
"""

import os
import shutil
import subprocess
from pathlib import Path

import maturin

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "python" / "dtrain.data" / "scripts"


def _profile():
    return os.environ.get("DTRAIN_WHEEL_PROFILE", "release")


def _build_binary():
    profile = _profile()
    subprocess.run(["cargo", "build", "--locked", "--profile", profile, "--bin", "dtrain"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    shutil.copy2(target / ("debug" if profile == "dev" else profile) / "dtrain", SCRIPTS / "dtrain")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build_binary()
    settings = {"build-args": f"--profile {_profile()} --locked", **(config_settings or {})}
    try:
        return maturin.build_wheel(wheel_directory, settings, metadata_directory)
    finally:
        shutil.rmtree(SCRIPTS.parent, ignore_errors=True)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    # maturin asks for the folder, though nothing of it is told here.
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    try:
        return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    finally:
        shutil.rmtree(SCRIPTS.parent, ignore_errors=True)


build_editable = maturin.build_editable
build_sdist = maturin.build_sdist
get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable
