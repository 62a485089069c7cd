"""Kernels compiled ahead of time for chips that are not here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

pytest.importorskip("triton", reason="Triton is not installed: nothing was compiled (pip install triton)")

from kvedge.plugins.cuda.ptxas import PACKAGE, PATH_VARIABLE, RELEASE, jetpack_6_ptxas, ptxas_for

SMALL = ("--head-dim", "64", "--heads", "9", "--kv-heads", "3")
KERNELS = {"queries", "seal", "attend_decode", "attend_prefill", "merge", "append"}
KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 110: 227, 120: 99}
SHARED_BYTES = {sm: 1024 * kib for sm, kib in KIB.items()}
"""What a program may ask for at most (CUDA programming guide, table of compute capabilities)."""


def compiled(*arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as this one has Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kvedge.plugins.cuda.compile", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=7200)
    assert run.returncode == expect, run.stderr
    return run


def parameter_bytes(code: bytes, folder: Path) -> list[int]:
    """Sizes of the parameters that machine code takes, in order."""
    from triton import knobs

    (folder / "kernel.cubin").write_bytes(code)
    command = [knobs.nvidia.cuobjdump.path, "-elf", str(folder / "kernel.cubin")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"EIATTR_KPARAM_INFO.*?Ordinal\s*:\s*(0x[0-9a-f]+).*?Size\s*:\s*(0x[0-9a-f]+)"
    return [size for _, size in sorted((int(n, 16), int(size, 16)) for n, size in re.findall(pattern, text, re.S))]


@pytest.mark.parametrize("sm", [87, 120])
def test_a_bundle_holds_the_kernels(sm: int, tmp_path: Path) -> None:
    facts = json.loads(compiled("--sm", str(sm), *SMALL, "-o", str(tmp_path), "--json").stdout)
    assert {fact["name"] for fact in facts} == KERNELS
    with safe_open(tmp_path / f"int3-d64-sm{sm}.safetensors", "numpy") as bundle:
        assert set(bundle.keys()) == KERNELS | {"dct"}
        assert set(json.loads(bundle.metadata()["step"])) == {"pages_a_split", "most_decoded", "alignment"}
        for fact in facts:
            code, stored = bundle.get_tensor(fact["name"]).tobytes(), json.loads(bundle.metadata()[fact["name"]])
            assert code.startswith(b"\x7fELF") and len(code) == fact["code_bytes"]
            assert stored["symbol"].encode() in code
            assert stored["arguments"] == fact["arguments"] and len(stored["types"]) == len(stored["arguments"])
            assert stored["constants"]["DIM"] == 64
            assert parameter_bytes(code, tmp_path) == [8 if t[0] == "*" else 4 for t in stored["types"]] + [8, 8]
            assert fact["shared"] <= SHARED_BYTES[sm]
            assert 0 < fact["registers"] <= 255


def test_the_table_names_what_spills() -> None:
    lines = compiled("--sm", "86", *SMALL, "--kv", "fp").stdout.splitlines()
    assert lines[0].split("  ")[0] == "sm" and "spilled bytes" in lines[0]
    assert {line.split()[3] for line in lines[2:]} == KERNELS - {"seal"}


def test_code_for_orin_is_of_jetpack_6(tmp_path: Path) -> None:
    if jetpack_6_ptxas() is None:
        pytest.skip(f"{PACKAGE}=={RELEASE} is not installed: no code for JetPack 6 was compiled")
    run = compiled("--sm", "87", "--sm", "86", *SMALL, "--kv", "fp", "--json")
    cuda = {fact["sm"]: fact["cuda"] for fact in json.loads(run.stdout)}
    assert cuda[87] == "12.6" != cuda[86]
    assert "JetPack" not in run.stderr


@pytest.mark.parametrize("sm", [sm for sm in SHARED_BYTES if sm != 87])
def test_code_is_of_the_oldest_cuda_that_knows_the_chip(sm: int) -> None:
    with ptxas_for(sm) as cuda:
        assert cuda.split(".")[0] == ("13" if sm == 110 else "12")


def test_code_for_orin_of_a_newer_cuda_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.setenv(PATH_VARIABLE, knobs.nvidia.ptxas.path)
    message = f"JetPack 6 has, got 12.9; pip install {PACKAGE}=={RELEASE}, or"
    with pytest.warns(UserWarning, match=message), ptxas_for(87) as cuda:
        assert cuda == "12.9"
    with warnings.catch_warnings(action="error"), ptxas_for(86) as cuda:
        assert cuda == "12.9"


@pytest.mark.parametrize(("version", "taken"), [("12.6.85", True), ("12.4.131", True), ("12.9.86", False)])
def test_only_a_package_that_jetpack_6_can_follow_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, taken: bool
) -> None:
    tool, facts = tmp_path / "nvidia/cuda_nvcc/bin/ptxas", tmp_path / f"nvidia_cuda_nvcc_cu12-{version}.dist-info"
    for path in (tool, facts / "METADATA"):
        path.parent.mkdir(parents=True)
    tool.touch()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert jetpack_6_ptxas() == (tool if taken else None)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", ["64", "80", "96", "128", "256"])
def test_every_chip_and_kind(head_dim: str) -> None:
    kinds = ("fp", "fp16", "int8", "k8v4", "int4", "k4v3", "int3", "k4v2", "k3v2", "int2")
    facts = of_chips_and_kinds(list(SHARED_BYTES), kinds, head_dim)
    assert len(facts) == len(SHARED_BYTES) * (len(kinds) * len(KERNELS) - 2)  # exact ones have no seal
    newer = [sm for sm in SHARED_BYTES if sm >= 89]
    floats = of_chips_and_kinds(newer, ("fp8",), head_dim)
    assert len(floats) == len(newer) * len(KERNELS)
    for fact in facts + floats:
        assert fact["shared"] <= SHARED_BYTES[fact["sm"]], fact


def of_chips_and_kinds(chips: list[int], kinds: tuple[str, ...], head_dim: str) -> list[dict[str, Any]]:
    options = [*(o for sm in chips for o in ("--sm", str(sm))), *(o for kind in kinds for o in ("--kv", kind))]
    found = compiled(*options, "--head-dim", head_dim, "--heads", "16", "--kv-heads", "4", "--json").stdout
    return json.loads(found)


def test_floats_of_8_bits_need_a_chip_that_has_them() -> None:
    facts = json.loads(compiled("--sm", "89", *SMALL, "--kv", "fp8", "--json").stdout)
    assert {fact["name"] for fact in facts if fact["constants"].get("FLOAT_CODES")} == {
        "seal",
        "attend_decode",
        "attend_prefill",
    }
    line = "error: kernels for fp8; expected SM89 or newer; got SM87; "
    line += "choose int8: the same bytes, and a quarter of fp8's error on rotated vectors"
    assert compiled("--sm", "87", *SMALL, "--kv", "fp8", expect=1).stderr.splitlines()[-1] == line


def test_a_chip_that_does_not_read_a_kind_is_found_first(tmp_path: Path) -> None:
    run = compiled("--sm", "89", "--sm", "75", *SMALL, "--kv", "fp", "--kv", "fp8", "-o", str(tmp_path / "k"), expect=1)
    assert "compiling" not in run.stderr and "kernels for fp8; expected SM89 or newer; got SM75" in run.stderr
    assert not (tmp_path / "k").exists()


def test_bad_options_end_in_a_line() -> None:
    assert "Invalid value for '--sm': '61' is not one of" in compiled("--sm", "61", expect=2).stderr
    assert "unknown KV kind; expected one of" in compiled("--sm", "87", "--kv", "int5", expect=1).stderr


def test_the_interpreter_cannot_compile() -> None:
    command = [sys.executable, "-m", "kvedge.plugins.cuda.compile", "--sm", "87"]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "1"})
    assert run.returncode == 1
    assert "expected Triton's compiler; got TRITON_INTERPRET is set; unset it" in run.stderr


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = compiled("--sm", "86", *SMALL, "--kv", "fp", "-o", str(tmp_path / "file" / "kernels"), expect=1)
    assert run.stderr.endswith(f"error: {tmp_path}/file/kernels; got Not a directory\n")


def test_without_triton_it_is_said(tmp_path: Path) -> None:
    run_module = "import runpy; runpy.run_module('kvedge.plugins.cuda.compile', run_name='__main__')"
    hidden = f"import sys; sys.modules['triton'] = None; {run_module}"
    run = subprocess.run([sys.executable, "-c", hidden, "--sm", "87"], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.endswith("error: kernels; expected Triton; got none; pip install 'kvedge[export,cuda]'\n")
