"""Builds the wheel: maturin builds the extension module, and the binary `dtrain` goes in beside it, from the same sources.

`DTRAIN_WHEEL_BUILT=target/debug` puts into the wheel what `cargo build --workspace` left there, for whoever has that already.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import maturin

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "python" / "dtrain.data" / "scripts"
PACKAGE = ROOT / "python" / "dtrain"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    built = os.environ.get("DTRAIN_WHEEL_BUILT")
    if built:
        metadata = Path(metadata_directory or prepare_metadata_for_build_wheel(wheel_directory, config_settings))
        if metadata_directory is None:
            metadata = Path(wheel_directory) / metadata
        return _pack(Path(wheel_directory), ROOT / built, metadata)
    subprocess.run(["cargo", "build", "--locked", "--release", "--bin", "dtrain"], cwd=ROOT, check=True)
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    shutil.copy2(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "dtrain", SCRIPTS / "dtrain")
    try:
        settings = {"build-args": "--profile release --locked", **(config_settings or {})}
        return maturin.build_wheel(wheel_directory, settings, metadata_directory)
    finally:
        shutil.rmtree(SCRIPTS.parent, ignore_errors=True)


def _pack(folder, built, metadata):
    """A wheel of what is built, with what maturin says of it."""
    stem = metadata.name.removesuffix(".dist-info")
    tag = f"cp310-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    files = {f"dtrain/{path.name}": path.read_bytes() for path in PACKAGE.iterdir() if path.suffix in (".py", ".pyi", ".typed")}
    files["dtrain/_native.abi3.so"] = (built / "lib_native.so").read_bytes()
    files[f"{stem}.data/scripts/dtrain"] = (built / "dtrain").read_bytes()
    told = [path for path in metadata.rglob("*") if path.is_file() and path.name not in ("RECORD", "WHEEL")]
    files.update({f"{metadata.name}/{path.relative_to(metadata)}": path.read_bytes() for path in told})
    files[f"{metadata.name}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: dtrain\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = []
    name = f"{stem}-{tag}.whl"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100755 if "/scripts/" in path or path.endswith(".so") else 0o100644) << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(content)}\n")
        wheel.writestr(f"{metadata.name}/RECORD", "".join(record) + f"{metadata.name}/RECORD,,\n")
    return name


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
