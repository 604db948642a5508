#!/usr/bin/env python3
"""Compiles the CUDA kernels that gpumon embeds, or with --check says whether the kept PTX is what they compile to.

Needs NVRTC from PyPI (pip install -r scripts/ptx.txt), no GPU and no CUDA toolkit. The version is pinned: another one
writes other text, and a newer one PTX that older drivers refuse (12.1 writes PTX 8.1, for drivers from 530 on).
"""

import ctypes
import hashlib
import importlib.metadata
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = [ROOT / "monitor/src/characterize/cuda/burn.cu", ROOT / "profile/src/native/cuda/net.cu"]
PACKAGE = "nvidia-cuda-nvrtc-cu12"
# Runs on everything from Ampere on; the driver compiles it for the GPU that it finds.
OPTIONS = [b"--gpu-architecture=compute_80", b"--fmad=true"]


def library():
    for file in importlib.metadata.files(PACKAGE) or []:
        if file.name.startswith("libnvrtc.so"):
            return ctypes.CDLL(str(file.locate()))
    sys.exit(f"libnvrtc.so is not in {PACKAGE}: pip install -r scripts/ptx.txt")


def text_of(nvrtc, program, size, get):
    length = ctypes.c_size_t()
    check(getattr(nvrtc, size)(program, ctypes.byref(length)))
    buffer = ctypes.create_string_buffer(length.value)
    check(getattr(nvrtc, get)(program, buffer))
    return buffer.value.decode()


def check(result):
    if result != 0:
        sys.exit(f"NVRTC answers {result}")


def compile_ptx(nvrtc, source):
    program = ctypes.c_void_p()
    text = source.read_bytes()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) != 0:
        sys.exit(text_of(nvrtc, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog"))
    ptx = text_of(nvrtc, program, "nvrtcGetPTXSize", "nvrtcGetPTX")
    # The library's own header says less than this one.
    body = ptx[ptx.index(".version"):]
    version = importlib.metadata.version(PACKAGE)
    return (
        f"// Made by scripts/make_ptx.py from {source.name} with {PACKAGE} {version}.\n"
        f"// sha256 of the source: {hashlib.sha256(text).hexdigest()}\n\n{body}"
    )


def main():
    only_check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not only_check:
        sys.exit("usage: make_ptx.py [--check]")
    try:
        nvrtc = library()
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"{PACKAGE} is not installed: pip install -r scripts/ptx.txt")
    for source in KERNELS:
        ptx = compile_ptx(nvrtc, source)
        kept = source.with_suffix(".ptx")
        if not only_check:
            kept.write_text(ptx)
            print(f"wrote {kept.relative_to(ROOT)}")
        elif not kept.exists() or kept.read_text() != ptx:
            sys.exit(f"{kept.relative_to(ROOT)} is not what {source.name} compiles to: run scripts/make_ptx.py")
        else:
            print(f"{kept.relative_to(ROOT)} is what {source.name} compiles to")


main()
