"""Compile the kernels of a layer ahead of time, for a chip that need not be there.

    python -m kvedge.plugins.cuda.compile --sm 87 --kv int3 --head-dim 128 --heads 32 --kv-heads 8 -o kernels
    python -m kvedge.plugins.cuda.compile --sm 75 --sm 87 --sm 120 --kv int3 --kv k4v2

One bundle per chip and kind: a safetensors file with the machine code of each kernel and the rotation's matrix `dct`.
Its metadata hold a JSON document per kernel (what launching it takes) and one under `step` (how a step is cut into
programs). Code for Orin (87) is made by the ptxas of JetPack 6's CUDA 12.6, which the package
nvidia-cuda-nvcc-cu12==12.6.85 has; where a newer one makes it, a warning says so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import click
from numpy.typing import NDArray

from kvedge.plugins.cuda.ptxas import ptxas_for
from kvedge.plugins.cuda.sized_layer import make_layer
from kvedge.plugins.reference.rotation import dct_matrix, split
from kvedge.targets.engine_file import replace_file
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import DEFAULT_PAGE, LayerSpec
from kvedge.targets.text_table import text_table

CHIPS = (75, 80, 86, 87, 89, 90, 100, 110, 120)
"""Compute capabilities that every kernel is compiled for."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One kernel for one chip.

    Args:
        cuda: version of the CUDA toolkit whose ptxas made the code, such as "12.6".
        symbol: name of the function in the machine code.
        arguments: names of the parameters that are passed at launch, in order. Two null pointers follow them:
            scratch that Triton's compiler may ask for, and here must not.
        types: Triton's types of these.
        constants: numbers that it is compiled for.
        registers: of a thread.
        shared: bytes of a program, asked for at launch.
        spilled: bytes of a thread's stack: registers that did not fit.
    """

    name: str
    sm: int
    kind: str
    cuda: str
    symbol: str
    arguments: tuple[str, ...]
    types: tuple[str, ...]
    constants: dict[str, int | float]
    warps: int
    registers: int
    shared: int
    spilled: int
    code: bytes

    @property
    def facts(self) -> dict[str, object]:
        """All but the code."""
        return {name: value for name, value in asdict(self).items() if name != "code"}


def require_compiler(what: str) -> None:
    """Refuse to compile where that is not possible.

    Raises:
        KvedgeError: Triton is not installed, or is set to interpret.
    """
    there = find_spec("triton") is not None
    require(there, what, expected="Triton", got="none", fix="pip install 'kvedge[export,cuda]'")
    interprets = bool(os.environ.get("TRITON_INTERPRET"))
    require(not interprets, what, expected="Triton's compiler", got="TRITON_INTERPRET is set", fix="unset it")


def compile_layer(
    layer: LayerSpec, sm: int, *, rotary_pairs: int | None = None, interleaved: bool = False, bias_pairs: int = 0
) -> list[Compiled]:
    """Kernels of one layer for one chip.

    Args:
        rotary_pairs: of the turn towards the sinks; None for all channels, 0 for none.

    Raises:
        KvedgeError: Triton is missing, is set to interpret, or has no compiler for the chip, or the chip does not
            read such pages.
    """
    require_compiler("kernels")
    if layer.rules.packs:
        layer.kind.require_read_by(sm, f"kernels for {layer.kind.value}")
    from kvedge.plugins.cuda.variants import LayerForm, variants

    pairs = layer.head_dim // 2 if rotary_pairs is None else rotary_pairs
    form = LayerForm(layer=layer, rotary_pairs=pairs, interleaved=interleaved, bias_pairs=bias_pairs)
    with ptxas_for(sm) as cuda:
        return [_compile(variant, layer, sm, cuda) for variant in variants(form)]


def _compile(variant, layer: LayerSpec, sm: int, cuda: str) -> Compiled:  # type: ignore[no-untyped-def]
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kvedge.plugins.cuda.signatures import aligned, signature
    from kvedge.plugins.cuda.variants import options

    types, how = signature(variant.kernel, variant.constants, layer.kind.hot_dtype), options(variant.kernel)
    made = triton.compile(
        ASTSource(variant.kernel, types, constexprs=variant.constants, attrs=aligned(types)),
        target=GPUTarget("cuda", sm, 32),
        options=how,
    )
    code = made.asm["cubin"]
    registers, spilled = resources(code)
    if made.metadata.global_scratch_size or made.metadata.profile_scratch_size:
        raise KvedgeError(variant.name, expected="a kernel without scratch of the compiler's", got="one that needs it")
    return Compiled(
        name=variant.name,
        sm=sm,
        kind=layer.kind.value,
        cuda=cuda,
        symbol=made.metadata.name,
        **passed(variant.constants, types),
        warps=int(how["num_warps"]),
        registers=registers,
        shared=made.metadata.shared,
        spilled=spilled,
        code=code,
    )


def passed(constants: dict[str, Any], types: dict[str, str]) -> dict[str, Any]:
    """Fields of Compiled that say what a kernel of these constants and types of parameters is given."""
    arguments = {name: kind for name, kind in types.items() if kind != "constexpr"}
    numbers = {name: value for name, value in constants.items() if isinstance(value, int | float)}
    return {"arguments": tuple(arguments), "types": tuple(arguments.values()), "constants": numbers}


def resources(code: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread, as cuobjdump reads them in the machine code."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(code)
        asked = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    registers, stack = (re.search(rf"{name}:(\d+)", text) for name in ("REG", "STACK"))
    if registers is None or stack is None:
        raise KvedgeError("cuobjdump", expected="REG and STACK of a kernel", got=text.strip()[:200] or "nothing")
    return int(registers[1]), int(stack[1])


def bundle(kernels: list[Compiled], layer: LayerSpec) -> bytes:
    """The file of the kernels of one layer and chip."""
    import numpy as np
    from safetensors.numpy import save

    from kvedge.plugins.cuda.constants import PAGES_A_SPLIT, most_decoded
    from kvedge.plugins.cuda.signatures import ALIGNMENT

    facts = {kernel.name: json.dumps(kernel.facts) for kernel in kernels}
    step = {"pages_a_split": PAGES_A_SPLIT, "most_decoded": most_decoded(layer), "alignment": ALIGNMENT}
    facts["step"] = json.dumps(step)
    code: dict[str, NDArray[Any]] = {kernel.name: np.frombuffer(kernel.code, np.uint8) for kernel in kernels}
    code["dct"] = dct_matrix(split(layer.head_dim)[1])
    return bytes(save(code, metadata=facts))


def write_bundle(kernels: list[Compiled], layer: LayerSpec, path: Path) -> None:
    """Write the kernels of one layer and chip; a file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, bundle(kernels, layer))


@click.command(epilog=__doc__)
@click.option("--sm", type=click.Choice([str(sm) for sm in CHIPS]), multiple=True, required=True, help="Chips.")
@click.option("--kv", multiple=True, default=["int3"], show_default=True, help="Kinds of cache.")
@click.option("--heads", type=click.IntRange(1), default=32, show_default=True)
@click.option("--kv-heads", type=click.IntRange(1), default=8, show_default=True)
@click.option("--head-dim", type=click.IntRange(8), default=128, show_default=True)
@click.option("--page", type=click.IntRange(8), default=DEFAULT_PAGE, show_default=True, help="Tokens a page.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for the bundles; none: only the table.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def main(
    sm: tuple[str, ...],
    kv: tuple[str, ...],
    heads: int,
    kv_heads: int,
    head_dim: int,
    page: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compile the attention kernels, list what they take, and write one bundle per chip and kind."""
    kernels: list[Compiled] = []
    kinds = [Kind.parse(name) for name in kv]
    for kind, chip in product(kinds, map(int, sm)):
        kind.require_read_by(chip, f"kernels for {kind.value}")
    for kind in kinds:
        layer = make_layer(kind, heads, kv_heads, head_dim, page)
        for chip in map(int, sm):
            click.echo(f"compiling {kind.value} for sm_{chip}", err=True)
            made = compile_layer(layer, chip)
            kernels += made
            if output is not None:
                write_bundle(made, layer, output / f"{kind.value}-d{head_dim}-sm{chip}.safetensors")
    if as_json:
        click.echo(json.dumps([kernel.facts | {"code_bytes": len(kernel.code)} for kernel in kernels], indent=2))
    else:
        click.echo(_table(kernels))


def _table(kernels: list[Compiled]) -> str:
    head = ("sm", "cuda", "kv", "kernel", "warps", "registers", "shared bytes", "spilled bytes", "code bytes")
    rows = [(k.sm, k.cuda, k.kind, k.name, k.warps, k.registers, k.shared, k.spilled, len(k.code)) for k in kernels]
    return text_table(head, [[str(cell) for cell in row] for row in rows])


if __name__ == "__main__":
    try:
        main()
    except KvedgeError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.filename}; got {error.strerror}")
