"""The operator kvedge::PagedAttention inside real ONNX Runtime sessions: results, in-place pools, errors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, RuntimeException

from kvedge.plugins import library, schema
from kvedge.plugins.key_bias import KeyBias, key_bias
from kvedge.plugins.native import native
from kvedge.plugins.reference.append import append
from kvedge.plugins.reference.attend import Attended, attend
from kvedge.plugins.reference.integers import attend_in_integers
from kvedge.plugins.reference.prepare import prepare
from kvedge.plugins.reference.seal import seal
from kvedge.plugins.step import PagedStep
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import LayerSpec, PageRules, RopeSpec

ROWS, CONTEXT = 2, 200
CHUNKS = (40, 7, 1, 24, 1, 1, 17, 40)
POOLS = ("hot", "packed")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer and the type of its hot pool."""

    layer: LayerSpec
    half: bool
    turned: bool
    biased: bool = False
    rotary: bool = True
    side_by_side: bool = False

    @property
    def hot_dtype(self) -> type[np.generic]:
        return np.float16 if self.half else np.float32


def case(kind: Kind, *, half: bool, window: int | None = 48, turned: bool = True) -> Case:
    rules = PageRules(page=16, sinks=4, recent=16, window=window, exact=kind.is_exact)
    layer = LayerSpec(
        index=0, heads=4, kv_heads=2, head_dim=32, kind=kind, rules=rules, rope=0, scale=32**-0.5, softcap=0.0
    )
    return Case(layer=layer, half=half, turned=turned)


CASES = {
    "float-exact": case(Kind.FP, half=False),
    "float-exact-no-window": case(Kind.FP, half=False, window=None, turned=False),
    "half-exact": case(Kind.FP, half=True),
    "half-packed": case(Kind.INT4, half=True),
    "half-packed-no-window": case(Kind.K4V2, half=True, window=None, turned=False),
    "half-packed-floats": case(Kind.FP8, half=True),
    "float-packed": case(Kind.INT3, half=False),
    "half-packed-biased": replace(case(Kind.INT3, half=True), biased=True),
    "half-packed-no-rotary": replace(case(Kind.INT4, half=True, turned=False), rotary=False),
    "half-packed-side-by-side": replace(case(Kind.INT4, half=True), side_by_side=True),
    "float-exact-side-by-side-no-rotary": replace(case(Kind.FP, half=False), side_by_side=True, rotary=False),
    "half-window-inside-recent": case(Kind.INT4, half=True, window=16),
}


def model_bytes(case: Case, **changed: object) -> bytes:
    """A model of one node; absent optional tensors have no name."""
    absent = set() if case.layer.rules.packs else {"packed", "packed_table", "packed_out"}
    absent |= set() if case.turned else {"sink_cos", "sink_sin"}
    absent |= set() if case.rotary else {"cos", "sin"}
    absent |= {"k", "v"} if case.side_by_side else set()
    absent |= set() if case.biased else {"bias_page", "bias_freqs", "bias_channels"}
    inputs = ["" if name in absent else name for name in schema.INPUTS]
    outputs = ["" if name in absent else name for name in schema.OUTPUTS]
    attributes = schema.attributes(case.layer, interleaved=False) | changed
    given = {name: value for name, value in attributes.items() if value is not None}
    node = onnx.helper.make_node(schema.NAME, inputs, outputs, domain=schema.DOMAIN, **given)
    values = [[tensor_info(case, name) for name in names if name] for names in (inputs, outputs)]
    graph = onnx.helper.make_graph([node], "one_node", *values)
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid(schema.DOMAIN, schema.VERSION)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def tensor_info(case: Case, name: str) -> onnx.ValueInfoProto:
    if name in ("hot", "hot_out"):
        dtype = onnx.TensorProto.FLOAT16 if case.half else onnx.TensorProto.FLOAT
    elif name in ("q", "k", "v", "cos", "sin", "sink_cos", "sink_sin", "bias_page", "bias_freqs", "out"):
        dtype = onnx.TensorProto.FLOAT
    else:
        dtype = onnx.TensorProto.INT32
    return onnx.helper.make_tensor_value_info(name, dtype, None)


def session(case: Case, threads: int = 0, **changed: object) -> ort.InferenceSession:
    return start(model_bytes(case, **changed), threads)


def start(model: bytes, threads: int = 0) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    library.register(options)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(kw_only=True)
class OpStep(PagedStep):
    """A step, and the inputs of the operator that q, k and v are prepared from."""

    projected: dict[str, np.ndarray]


def steps(case: Case) -> Iterator[OpStep]:
    """A stream for two rows of unequal length; a step starts from the pools left in the one before."""
    layer, rules, rng = case.layer, case.layer.rules, np.random.default_rng(0)
    capacity = rules.capacity(CONTEXT, max(CHUNKS))
    hot = np.zeros(layer.hot_shape(ROWS * capacity.hot_pages + 1), case.hot_dtype)
    packed = packed_table = None
    if rules.packs:
        packed = np.zeros(layer.packed_shape(ROWS * capacity.packed_pages + 1), np.int32)
        packed_table = shuffled_table(rng, capacity.packed_pages)
    hot_table, context = shuffled_table(rng, capacity.hot_pages), np.zeros(ROWS, np.int32)
    for size in CHUNKS:
        projected = project(rng, case, size)
        turn = (projected["cos"], projected["sin"]) if case.rotary else None
        parts = projected["q"] if case.side_by_side else tuple(projected[name] for name in "qkv")
        q, k, v = prepare(layer, parts, turn, interleaved=False)
        step = OpStep(
            projected=projected,
            q=q,
            k=k,
            v=v,
            hot=hot,
            packed=packed,
            hot_table=hot_table,
            packed_table=packed_table,
            context=context,
            num_new=np.array([size, max(1, size - 3)], np.int32),
            bias=some_bias(rng, layer) if case.biased else None,
            **turns(rng, size, layer.head_dim // 2 if case.turned else None),
        )
        yield step
        hot, packed, context = step.hot, step.packed, context + step.num_new


def some_bias(rng: np.random.Generator, layer: LayerSpec) -> KeyBias:
    freqs = tuple(float(f) for f in 100.0 ** -(np.arange(0, layer.head_dim, 2) / layer.head_dim))
    rope = RopeSpec(inv_freq=freqs, attention_scaling=1.0, interleaved=False)
    bias = rng.standard_normal((layer.kv_heads, layer.head_dim)).astype(np.float32)
    return key_bias(bias, rope, layer.rules.page)


def project(rng: np.random.Generator, case: Case, size: int) -> dict[str, np.ndarray]:
    """What the products in front of the operator give, and the angles of its rotary embedding."""
    layer = case.layer
    widths = {"q": layer.heads, "k": layer.kv_heads, "v": layer.kv_heads}
    arrays = {name: normal(rng, size, heads * layer.head_dim) for name, heads in widths.items()}
    if case.side_by_side:
        arrays = {"q": np.concatenate([arrays[name] for name in "qkv"], -1)}
    if case.rotary:
        angles = rng.uniform(0, 6, (ROWS, size, layer.head_dim // 2))
        arrays |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    return arrays


def normal(rng: np.random.Generator, size: int, width: int) -> np.ndarray:
    return rng.standard_normal((ROWS, size, width)).astype(np.float32)


def shuffled_table(rng: np.random.Generator, width: int) -> np.ndarray:
    """Any page may be anywhere, and page 0 belongs to nobody."""
    return (1 + rng.permutation(ROWS * width)).reshape(ROWS, width).astype(np.int32)


def turns(rng: np.random.Generator, size: int, pairs: int | None) -> dict[str, np.ndarray]:
    if pairs is None:
        return {}
    angles = rng.uniform(0, 6, (ROWS, size, pairs))
    return {"sink_cos": np.cos(angles).astype(np.float32), "sink_sin": np.sin(angles).astype(np.float32)}


def feeds(step: OpStep) -> dict[str, np.ndarray]:
    prepared = ("q", "k", "v", "cos", "sin")
    arrays = {name: getattr(step, name) for name in schema.INPUTS if name not in prepared and "bias" not in name}
    arrays |= step.projected
    if step.bias is not None:
        arrays |= {"bias_page": step.bias.page, "bias_freqs": step.bias.freqs, "bias_channels": step.bias.channels}
    return {name: array for name, array in arrays.items() if array is not None}


def run(model: ort.InferenceSession, step: OpStep) -> dict[str, np.ndarray]:
    """A plain run: separate buffers for the pools."""
    names = [output.name for output in model.get_outputs()]
    return dict(zip(names, model.run(None, feeds(step)), strict=True))


def reference(layer: LayerSpec, step: OpStep) -> tuple[OpStep, Attended]:
    """The step after the numpy kernels, on copies of the pools."""
    after = replace(step, hot=step.hot.copy(), packed=None if step.packed is None else step.packed.copy())
    seal(layer, after)
    integers = native().reads_integers and not layer.rules.exact and not layer.kind.has_floats
    read = attend_in_integers if integers else attend
    attended = read(layer, after, interleaved=False)
    append(layer, after)
    return after, attended


def advance(step: OpStep, results: dict[str, np.ndarray]) -> None:
    step.hot, step.packed = results["hot_out"], results.get("packed_out")


@pytest.mark.parametrize("name", CASES)
def test_a_stream_equals_the_reference(name: str):
    case, pages_read = CASES[name], 0
    tolerance = 3e-3 if native().reads_integers else 2e-5  # a rounding may go the other way
    model = session(case)
    for step in steps(case):
        after, attended = reference(case.layer, step)
        results = run(model, step)
        np.testing.assert_allclose(results["out"].reshape(attended.out.shape), attended.out, rtol=1e-4, atol=tolerance)
        np.testing.assert_array_equal(results["pages_read"], attended.pages_read)
        np.testing.assert_array_equal(results["hot_out"], after.hot)
        if after.packed is not None:
            np.testing.assert_array_equal(results["packed_out"], after.packed)
        pages_read += int(results["pages_read"].sum())
        advance(step, results)
    assert (pages_read > 0) == case.layer.rules.packs


@pytest.mark.parametrize("name", CASES)
def test_bound_pools_are_written_in_place(name: str):
    case = CASES[name]
    model, stream = session(case), steps(case)
    pools: dict[str, ort.OrtValue] = {}
    for step in stream:
        expected = run(model, step)
        pools = pools or own_pools(step)
        outputs = run_bound(model, step, pools)
        for pool, value in pools.items():
            assert outputs[f"{pool}_out"].data_ptr() == value.data_ptr()
            np.testing.assert_array_equal(value.numpy(), expected[f"{pool}_out"])
        for name in ("out", "pages_read"):
            np.testing.assert_array_equal(outputs[name].numpy(), expected[name])
        advance(step, expected)


def own_pools(step: OpStep) -> dict[str, ort.OrtValue]:
    arrays = feeds(step)
    return {name: ort.OrtValue.ortvalue_from_numpy(arrays[name]) for name in POOLS if name in arrays}


def run_bound(model: ort.InferenceSession, step: OpStep, pools: dict[str, ort.OrtValue]) -> dict[str, ort.OrtValue]:
    """A run as the runtime does it: each pool is an input and an output in one buffer."""
    binding = model.io_binding()
    for name, array in feeds(step).items():
        binding.bind_ortvalue_input(name, pools.get(name) or ort.OrtValue.ortvalue_from_numpy(array))
    names = [output.name for output in model.get_outputs()]
    for name in names:
        pool = pools.get(name.removesuffix("_out"))
        if pool is None:
            binding.bind_output(name)
        else:
            binding.bind_ortvalue_output(name, pool)
    model.run_with_iobinding(binding)
    return dict(zip(names, binding.get_outputs(), strict=True))


def test_a_plain_run_leaves_its_inputs_alone():
    case = CASES["half-packed"]
    model = session(case)
    for step in steps(case):
        before = {name: array.copy() for name, array in feeds(step).items()}
        results = run(model, step)
        for name, array in feeds(step).items():
            np.testing.assert_array_equal(array, before[name])
        advance(step, results)


def test_heads_may_be_an_axis_of_their_own():
    """As norms of single heads leave queries and keys."""
    case = CASES["half-packed"]
    model = session(case)
    for step in steps(case):
        results = run(model, step)
        shaped = {name: step.projected[name].reshape(*step.projected[name].shape[:2], -1, 32) for name in "qkv"}
        other = model.run(["out"], feeds(step) | shaped)[0]
        np.testing.assert_array_equal(results["out"], other)
        advance(step, results)


def test_the_number_of_threads_changes_nothing():
    case = CASES["half-packed"]
    one, two = session(case, threads=1), session(case, threads=2)
    for step in steps(case):
        results, others = run(one, step), run(two, step)
        for name, array in results.items():
            np.testing.assert_array_equal(array, others[name])
        advance(step, results)


Change = Callable[[OpStep], dict[str, np.ndarray]]
REFUSED: dict[str, tuple[str, Change, str]] = {
    "rank": (
        "half-packed",
        lambda step: {"q": step.projected["q"][0]},
        r"q: expected \[B, N, heads \* head_dim\], got float \[40, 128\]",
    ),
    "new tokens": (
        "half-packed",
        lambda step: {"k": step.projected["k"][:, :-1]},
        r"k: expected .*\[2, 40, 64\], got .*\[2, 39, 64\]",
    ),
    "batch": (
        "half-packed",
        lambda step: {"context": step.context[:1]},
        r"context: expected int32 \[B\] = \[2\], got int32 \[1\]",
    ),
    "page size": (
        "half-packed",
        lambda step: {"hot": step.hot[:, :, :, :8]},
        r"hot: expected float16 .* 16, 32\], got .* 8, 32\]",
    ),
    "words": (
        "half-packed",
        lambda step: {"packed": step.packed[:, 1:]},
        r"packed: expected int32 \[packed_pages, words\]",
    ),
    "width": (
        "half-packed-side-by-side",
        lambda step: {"q": step.projected["q"][..., 1:]},
        r"q: expected float \[B, N, \(heads \+ 2 kv_heads\) \* head_dim\] = \[2, 40, 256\], got .* 255\]",
    ),
    "rotary": (
        "half-packed",
        lambda step: {"cos": step.projected["cos"][:, 1:]},
        r"cos: expected .* = \[2, 40, any\], got float \[2, 39, 16\]",
    ),
    "turn": (
        "float-exact",
        lambda step: {"sink_sin": step.sink_sin[..., 1:]},
        r"sink_sin: expected .* = \[2, 40, 16\]",
    ),
    "page number": ("half-packed", lambda step: {"hot_table": step.hot_table + 1000}, "hot_table"),
    "too many new": ("half-packed", lambda step: {"num_new": step.num_new + 1000}, "num_new"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_tensor_is_an_exception_that_says_what_was_expected(name: str):
    which, change, message = REFUSED[name]
    case = CASES[which]
    step = next(steps(case))
    with pytest.raises(InvalidArgument, match=message):
        session(case).run(None, feeds(step) | {k: np.ascontiguousarray(v) for k, v in change(step).items()})


WRONG_ATTRIBUTES = [("scale", None), ("heads", None), ("page", -16), ("window", 2**40)]


@pytest.mark.parametrize(("name", "value"), WRONG_ATTRIBUTES)
def test_a_wrong_attribute_is_refused_when_the_model_is_loaded(name: str, value: object):
    got = "none" if value is None else value
    message = f"attribute {name}: expected a number .*, got {got}; export the model"
    with pytest.raises(RuntimeException, match=message):
        session(CASES["half-packed"], **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("half-packed", 1, "8 bits .*, got 4 and 4"), ("half-packed-floats", 2, "0 or 1, got 2")],
)
def test_floats_have_8_bits(name: str, value: int, error: str):
    model = session(CASES[name], float_codes=value)
    with pytest.raises(InvalidArgument, match=f"float_codes: expected {error}"):
        model.run(None, feeds(next(steps(CASES[name]))))


def test_packed_pages_are_demanded_where_the_attributes_pack():
    case = CASES["half-window-inside-recent"]
    with pytest.raises(InvalidArgument, match="packed: expected a tensor, because this layer packs"):
        session(case, window=0).run(None, feeds(next(steps(case))))


def test_a_packed_pool_needs_its_output():
    case = CASES["half-packed"]
    model = onnx.load_from_string(model_bytes(case))
    model.graph.node[0].output[schema.OUTPUTS.index("packed_out")] = ""
    kept = [output for output in model.graph.output if output.name != "packed_out"]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    with pytest.raises(InvalidArgument, match="packed_out: expected an output, because the op writes to packed"):
        start(model.SerializeToString()).run(None, feeds(next(steps(case))))


def test_a_missing_library_is_an_error_with_the_fix(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(library, "LIBRARY_NAME", "libabsent.so")
    with pytest.raises(FileNotFoundError, match=r"libabsent\.so .*pip install -e"):
        library.library_path.__wrapped__()


class OldOptions:
    """Session options of an ONNX Runtime that has no table of the version asked for."""

    def register_custom_ops_library(self, path: str) -> None:
        raise RuntimeError("kvedge: expected ONNX Runtime 1.24 or newer, got an older one; upgrade onnxruntime")


def test_a_too_old_onnxruntime_is_named() -> None:
    with pytest.raises(KvedgeError, match="onnxruntime; expected 1.24 or newer; got an older one; pip install"):
        library.register(OldOptions())


def test_the_library_says_what_is_too_old() -> None:
    assert library.TOO_OLD.encode() in library.library_path().read_bytes()
