"""``onnx:FILE``, with small models that are made here and run by onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from handful import HandfulError
from handful.embedders import load_embedder
from handful.embedders.external import _providers

onnx = pytest.importorskip("onnx", reason="needs onnx, which is among the dev requirements")
pytest.importorskip("onnxruntime", reason="needs onnxruntime, which is among the dev requirements")
T = onnx.TensorProto
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def save(path, shape, nodes, *, kind=T.FLOAT, out=T.FLOAT, out_shape=None, constants=(), inputs=None):
    """A model of a few operators, from "pixels" to "vectors"."""
    helper = onnx.helper
    inputs = inputs if inputs is not None else [helper.make_tensor_value_info("pixels", kind, shape)]
    graph = helper.make_graph(
        [helper.make_node(name, taken, given, **options) for name, taken, given, options in nodes],
        "model",
        inputs,
        [helper.make_tensor_value_info("vectors", out, out_shape)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return f"onnx:{path}"


ECHO = [("Identity", ["pixels"], ["vectors"], {})]
TO_FLOAT = [("Cast", ["pixels"], ["vectors"], {"to": T.FLOAT})]


def images(count, size=24):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def expected_vectors(pixels):
    return ((pixels / 255 - MEAN) / STD).mean((1, 2))


def test_a_feature_map_is_averaged_over_space(tmp_path):
    embedder = load_embedder(save(tmp_path / "model.onnx", ["n", 3, 24, 24], ECHO))
    assert (embedder.dim, embedder.image_size) == (3, 24)
    white = embedder.embed(np.full((1, 24, 24, 3), 255, dtype=np.uint8))
    np.testing.assert_allclose(white[0], [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225], rtol=1e-5)
    np.testing.assert_allclose(embedder.embed(images(5)), expected_vectors(images(5)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_a_fixed_batch(tmp_path, batch):
    embedder = load_embedder(save(tmp_path / "model.onnx", [batch, 3, 24, 24], ECHO))
    np.testing.assert_allclose(embedder.embed(images(5)), expected_vectors(images(5)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [["n", 3, "height", "width"], [None, 3, None, None], ["n", "c", "h", "w"]])
def test_axes_of_any_length(tmp_path, shape):
    embedder = load_embedder(save(tmp_path / "model.onnx", shape, ECHO))
    assert (embedder.dim, embedder.image_size) == (3, 224)


def test_one_side_given_is_that_of_the_square(tmp_path):
    assert load_embedder(save(tmp_path / "model.onnx", ["n", 3, 32, "w"], ECHO)).image_size == 32


def test_pixels_as_they_are(tmp_path):
    """uint8 is not normalised, and with the features last in the input, they are last in a feature map."""
    for shape in (["n", 3, 24, 24], ["n", 24, 24, 3]):
        embedder = load_embedder(save(tmp_path / "model.onnx", shape, TO_FLOAT, kind=T.UINT8))
        assert (embedder.dim, embedder.image_size) == (3, 24)
        np.testing.assert_allclose(embedder.embed(images(5)), images(5).mean((1, 2)), rtol=1e-5)


def test_the_features_last(tmp_path):
    embedder = load_embedder(save(tmp_path / "model.onnx", ["n", 24, 24, 3], ECHO))
    np.testing.assert_allclose(embedder.embed(images(5)), expected_vectors(images(5)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "exact"), [(T.FLOAT16, 1e-2), (T.DOUBLE, 1e-5)])
def test_other_floats(tmp_path, kind, exact):
    embedder = load_embedder(save(tmp_path / "model.onnx", ["n", 3, 24, 24], ECHO, kind=kind, out=kind))
    vectors = embedder.embed(images(5))
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected_vectors(images(5)), atol=exact)


def test_tokens_are_averaged_and_not_features(tmp_path):
    """(n, 3, 24, 24) -> tokens (n, 24 * 24, 3): their average is that over space."""
    nodes = [
        ("Transpose", ["pixels"], ["last"], {"perm": [0, 2, 3, 1]}),
        ("Reshape", ["last", "shape"], ["vectors"], {}),
    ]
    shape = ("shape", np.array([-1, 24 * 24, 3], dtype=np.int64))
    embedder = load_embedder(save(tmp_path / "model.onnx", ["n", 3, 24, 24], nodes, constants=[shape]))
    assert embedder.dim == 3
    np.testing.assert_allclose(embedder.embed(images(5)), expected_vectors(images(5)), rtol=1e-4, atol=1e-5)


def test_vectors_are_taken_as_they_are(tmp_path):
    nodes = [("ReduceMean", ["pixels"], ["vectors"], {"axes": [2, 3], "keepdims": 0})]
    embedder = load_embedder(save(tmp_path / "model.onnx", ["n", 3, 24, 24], nodes))
    np.testing.assert_allclose(embedder.embed(images(5)), expected_vectors(images(5)), rtol=1e-4, atol=1e-5)


def test_weights_in_another_file_are_part_of_the_key(tmp_path):
    keys = set()
    for scale in (1, 2):
        weights = ("scale", np.full((3, 24, 24), scale, dtype=np.float32))
        nodes = [("Mul", ["pixels", "scale"], ["vectors"], {})]
        save(tmp_path / "model.onnx", ["n", 3, 24, 24], nodes, constants=[weights])
        model = onnx.load(tmp_path / "model.onnx")
        onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
        assert (tmp_path / "weights.bin").is_file()
        embedder = load_embedder(f"onnx:{tmp_path / 'model.onnx'}")
        np.testing.assert_allclose(embedder.embed(images(2)), scale * expected_vectors(images(2)), rtol=1e-3, atol=1e-4)
        keys.add(embedder.key)
        (tmp_path / "weights.bin").unlink()
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("device", "available", "expected"),
    [
        ("cpu", ["CUDA", "CPU"], ["CPU"]),
        ("cuda", ["TensorRT", "CUDA", "CPU"], ["CUDA", "CPU"]),
        ("cuda", ["ROCM", "CPU"], ["ROCM", "CPU"]),
        ("mps", ["CoreML", "CPU"], ["CoreML", "CPU"]),
        ("auto", ["CUDA", "CPU"], ["CUDA", "CPU"]),
    ],
)
def test_the_device_that_was_asked_for(tmp_path, monkeypatch, device, available, expected):
    runtime, asked = pytest.importorskip("onnxruntime"), []
    session = runtime.InferenceSession

    def recorded(file, providers):
        asked.extend(providers)
        return session(file, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(runtime, "get_available_providers", lambda: [f"{one}ExecutionProvider" for one in available])
    monkeypatch.setattr(runtime, "InferenceSession", recorded)
    embedder = load_embedder(save(tmp_path / "model.onnx", ["n", 3, 24, 24], ECHO), device)
    assert asked == [f"{one}ExecutionProvider" for one in expected]
    np.testing.assert_allclose(embedder.embed(images(2)), expected_vectors(images(2)), rtol=1e-4, atol=1e-5)


def test_a_graphics_card_by_its_number():
    assert _providers(["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda:1") == [
        ("CUDAExecutionProvider", {"device_id": "1"}),
        "CPUExecutionProvider",
    ]


@pytest.mark.parametrize("device", ["cuda", "mps", "magic", "cu\0da"])
def test_a_device_that_onnxruntime_has_not(tmp_path, monkeypatch, device):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(HandfulError, match=r"onnxruntime cannot compute on '.*', only on CPU: leave out --device"):
        load_embedder(save(tmp_path / "model.onnx", ["n", 3, 24, 24], ECHO), device)


def two_inputs():
    return [onnx.helper.make_tensor_value_info(name, T.FLOAT, ["n", 3, 24, 24]) for name in ("pixels", "mask")]


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        (["n", 3, 24, 32], {}, r"should take square RGB images .* got tensor\(float\) \(n, 3, 24, 32\)"),
        (["n", 1, 24, 24], {}, "should take square RGB images"),
        (["n", 3, 24], {}, r"should take one input \(n, 3, size, size\) of floats or uint8, got tensor\(float\)"),
        (["n", 3, 24, 24], {"kind": T.INT64, "out": T.INT64}, r"of floats or uint8, got tensor\(int64\)"),
        (["n", 3, 9999, 9999], {}, "has image_size 9999: it should be"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path, shape, options, sentence):
    with pytest.raises(HandfulError, match=sentence):
        load_embedder(save(tmp_path / "model.onnx", shape, ECHO, **options))


def test_no_input_and_several(tmp_path):
    add = [("Add", ["pixels", "mask"], ["vectors"], {})]
    with pytest.raises(HandfulError, match=r"should take one input .* and tensor\(float\) \(n, 3, 24, 24\)"):
        load_embedder(save(tmp_path / "model.onnx", None, add, inputs=two_inputs()))
    constant = [("Identity", ["value"], ["vectors"], {})]
    weights = ("value", np.ones((1, 3), dtype=np.float32))
    with pytest.raises(HandfulError, match=r"should take one input .* got none"):
        load_embedder(save(tmp_path / "model.onnx", None, constant, inputs=[], constants=[weights]))


@pytest.mark.parametrize(
    ("nodes", "out", "sentence"),
    [
        (
            [("Cast", ["pixels"], ["vectors"], {"to": T.INT64})],
            T.INT64,
            "its first output should be floats .* got int64",
        ),
        ([("ReduceMean", ["pixels"], ["vectors"], {"axes": [1, 2, 3], "keepdims": 0})], T.FLOAT, r"shape \(1,\)"),
        ([("ReduceMean", ["pixels"], ["vectors"], {"keepdims": 0})], T.FLOAT, r"got float32 of shape \(\)"),
        (
            [("Concat", ["pixels", "pixels"], ["vectors"], {"axis": 0})],
            T.FLOAT,
            "its first output has 2 rows for 1 images",
        ),
        ([("SequenceConstruct", ["pixels"], ["vectors"], {})], None, "got a list"),
    ],
)
def test_outputs_that_do_not_fit(tmp_path, nodes, out, sentence):
    path = tmp_path / "model.onnx"
    if out is None:
        helper = onnx.helper
        kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(T.FLOAT, None))
        graph = helper.make_graph(
            [helper.make_node(*nodes[0][:3])], "model",
            [helper.make_tensor_value_info("pixels", T.FLOAT, ["n", 3, 24, 24])],
            [helper.make_value_info("vectors", kind)],
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    else:
        save(path, ["n", 3, 24, 24], nodes, out=out)
    with pytest.raises(HandfulError, match=f"the embedder onnx:.*model.onnx fails: ValueError: .*{sentence}"):
        load_embedder(f"onnx:{path}")


def test_a_model_that_fails_when_it_runs(tmp_path):
    """A dense layer for images of another size: only running it shows that."""
    nodes = [("Flatten", ["pixels"], ["flat"], {}), ("MatMul", ["flat", "weights"], ["vectors"], {})]
    weights = ("weights", np.ones((3 * 24 * 24, 2), dtype=np.float32))
    name = save(tmp_path / "model.onnx", ["n", 3, "h", "w"], nodes, constants=[weights])
    with pytest.raises(HandfulError, match=r"the embedder onnx:.*model.onnx fails: ") as caught:
        load_embedder(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x07\x12"])
def test_what_is_no_model(tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(HandfulError, match="is not an ONNX model that onnxruntime can read: ") as caught:
        load_embedder(f"onnx:{tmp_path / 'model.onnx'}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["onnx:", "onnx:\0", "onnx:" + "a" * 5000, "onnx:nothing.onnx"])
def test_no_file(name):
    with pytest.raises(HandfulError, match="there is no ONNX file at") as caught:
        load_embedder(name)
    assert "\0" not in str(caught.value)
