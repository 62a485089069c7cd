"""The kernels that an artifact takes along, compiled for the chips that it shall run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvedge.export.timed import Timed
from kvedge.plugins.cuda.compile import bundle, compile_layer
from kvedge.plugins.cuda.forms import Form, form_of, layer_forms
from kvedge.targets import names
from kvedge.targets.spec import CacheSpec, LayerSpec


def compile_kernels(
    cache: CacheSpec, bias_pairs: Mapping[int, int], sms: Sequence[int], timed: Timed
) -> dict[str, bytes]:
    """Files by name: a bundle for each form of layer and each compute capability.

    Args:
        bias_pairs: pairs of the layers' key biases (`kvedge.export.gpu.graph.bias_pairs`).
        sms: compute capabilities, such as 87.

    Raises:
        KvedgeError: Triton's interpreter is on, or has no compiler for a chip.
    """
    forms = layer_forms(cache, bias_pairs)
    examples = {forms[layer.index]: layer for layer in cache.layers}
    files = {}
    for number, layer in sorted(examples.items()):
        form = form_of(cache, layer, bias_pairs.get(layer.index, 0))
        for sm in sms:
            name = names.kernels(number, sm)
            with timed(name):
                files[name] = _compile(layer, form, sm)
    return files


def _compile(layer: LayerSpec, form: Form, sm: int) -> bytes:
    kernels = compile_layer(
        layer, sm, rotary_pairs=form.rotary_pairs, interleaved=form.interleaved, bias_pairs=form.bias_pairs
    )
    return bundle(kernels, layer)
