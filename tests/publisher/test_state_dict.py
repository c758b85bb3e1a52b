import numpy as np
import pytest

from weightsync.errors import Invalid, Unsupported
from weightsync.publisher.source import Chunking
from weightsync.publisher.state_dict import plan_tensors, stage

torch = pytest.importorskip("torch")


def staged(tensors, files=None):
    plan = plan_tensors(tensors, Chunking(1024))
    source = stage(plan, np.zeros(plan.layout.image_bytes, np.uint8), files)
    found = {tensor.name: b"" for tensor in plan.layout.tensors}
    for chunk in plan.layout.chunks:
        found[plan.layout.tensors[chunk.tensor].name] += bytes(source.read(chunk, memoryview(b"")))
    return source, found


def raw(tensor):
    """The bytes of a tensor by way of safetensors, an independent road."""
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy()) if tensor.numel() else b""


TORCH = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
    torch.complex128: "C128",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
}


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_every_torch_type_travels_as_bits(dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    tensor = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 60 * size, np.uint8)).view(dtype).view(6, 10)
    source, found = staged({"whole": tensor, "turned": tensor.view(torch.uint8).view(6, 10, size).transpose(0, 1).contiguous()})
    assert found["whole"] == bytes(tensor.view(torch.uint8).flatten().numpy())
    assert source.layout.tensors[source.layout.index["whole"]].dtype.name == TORCH[dtype]


@pytest.mark.parametrize("dtype", [d for d in TORCH if d.itemsize in (1, 2, 4, 8) or d == torch.complex128], ids=str)
def test_views_of_any_stride_travel_as_bits(dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    tensor = torch.from_numpy(np.random.default_rng(1).integers(0, 256, 64 * size, np.uint8)).view(dtype).view(8, 8)
    lanes = np.frombuffer(bytes(tensor.view(torch.uint8).flatten().numpy()), f"V{size}").reshape(8, 8)
    _, found = staged(
        {"t": tensor.t(), "every other": tensor[::2, 1::3], "row": tensor[3], "one": tensor[2, 2], "wide": tensor[1].expand(3, 8)}
    )
    assert found["t"] == lanes.T.tobytes()
    assert found["every other"] == lanes[::2, 1::3].tobytes()
    assert found["row"] == lanes[3].tobytes()
    assert found["one"] == lanes[2, 2].tobytes()
    assert found["wide"] == lanes[1].tobytes() * 3


def test_bools_scalars_and_empty_tensors():
    source, found = staged({"b": torch.tensor([True, False]), "s": torch.tensor(1.5), "e": torch.empty(0, 3), "n": np.float32(2)})
    assert found == {"b": b"\1\0", "s": np.float32(1.5).tobytes(), "e": b"", "n": np.float32(2).tobytes()}
    assert source.layout.tensors[source.layout.index["s"]].shape == ()


def test_conjugates_are_resolved():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    _, found = staged({"c": tensor.conj(), "i": tensor.conj().imag})
    assert found["c"] == np.array([1 - 2j, 3 + 4j], "<c8").tobytes()
    assert found["i"] == np.array([-2, 4], "<f4").tobytes()


def test_ties_become_aliases_of_the_first_name():
    embed = torch.nn.Parameter(torch.randn(8, 4))
    source, found = staged(
        {"z.lm_head": embed, "a.embed": embed, "m.again": embed.data, "other": embed.data.clone(), "part": embed.data[:4]}
    )
    assert source.layout.aliases == (("m.again", "a.embed"), ("z.lm_head", "a.embed"))
    assert set(found) == {"a.embed", "other", "part"}
    assert found["a.embed"] == raw(embed.data)


def test_what_only_looks_tied_is_not():
    tensor = torch.arange(16, dtype=torch.float32).view(4, 4)
    array = np.arange(16, dtype="<f4").reshape(4, 4)
    source, found = staged(
        {"a": tensor, "b": tensor.t(), "c": tensor.view(torch.int32), "d": array, "e": array.T, "f": torch.empty(0), "g": torch.empty(0)}
    )
    assert source.layout.aliases == ()
    assert found["e"] == array.T.tobytes()


def test_arrays_of_any_stride_and_byte_order():
    array = np.arange(24, dtype=">i4").reshape(4, 6)
    complex_ = np.array([[1 + 2j, 3 + 4j]], "c16")
    _, found = staged({"big": array, "strided": array[:, ::2], "c": complex_.T, "tied": array[:, ::2]})
    assert found["big"] == array.astype("<i4").tobytes()
    assert found["strided"] == array[:, ::2].astype("<i4").tobytes()
    assert found["c"] == complex_.T.tobytes()
    assert "tied" not in found


def test_the_trainer_may_write_on_at_once():
    tensor = torch.ones(100)
    array = np.ones(100, "f4")
    source, _ = staged({"t": tensor, "a": array})
    tensor.zero_()
    array[:] = 0
    for chunk in source.layout.chunks:
        assert bytes(source.read(chunk, memoryview(b""))) == np.ones(100, "<f4").tobytes()


def test_the_input_is_only_read():
    tensors = {
        "p": torch.nn.Parameter(torch.randn(10, 10).to(torch.bfloat16)),
        "v": torch.randn(10, 10).t(),
        "x": np.random.default_rng(0).random(9),
    }
    before = {name: np.asarray(t.detach().float() if isinstance(t, torch.Tensor) else t).tobytes() for name, t in tensors.items()}
    staged(tensors)
    assert before == {name: np.asarray(t.detach().float() if isinstance(t, torch.Tensor) else t).tobytes() for name, t in tensors.items()}


class Sharded(torch.Tensor):
    """Answers like a DTensor: knows its whole shape, holds a part, and gathers on demand."""

    @staticmethod
    def __new__(cls, whole, part):
        made = torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=whole.dtype, strides=whole.stride())
        made._whole, made._local_tensor = whole, part
        return made

    def full_tensor(self):
        return self._whole

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("a sharded tensor must be gathered before it is used")


def test_a_sharded_tensor_is_gathered():
    whole = torch.randn(6, 4).to(torch.bfloat16)
    sharded = Sharded(whole, whole[:3])
    source, found = staged({"w": sharded, "tied": sharded})
    assert source.layout.aliases == (("w", "tied"),)
    assert found["tied"] == raw(whole)


def test_files_come_along():
    source, _ = staged({"w": torch.ones(2)}, {"config.json": b"{}"})
    assert [(f.name, f.ref.nbytes) for f in source.files.small] == [("config.json", 2)]
    assert [data for _, data in source.objects] == [b"{}"]


REFUSED = [
    ("no tensors", {}, Invalid, "no tensors"),
    ("number", {"step": 7}, Invalid, "'step' is a int"),
    ("nested", {"model": {"w": np.ones(1)}}, Invalid, "'model' is a dict"),
    ("name", {7: np.ones(1)}, Invalid, "'7' is not text"),
    ("control characters", {"a\nb": np.ones(1)}, Invalid, "do not print"),
    ("text", {"s": np.array(["x"])}, Unsupported, "'s'"),
    ("objects", {"o": np.array([None])}, Unsupported, "'o'"),
    ("masked", {"m": np.ma.masked_array([1.0], [True])}, Invalid, "'m' is masked"),
    ("sparse", {"w": torch.eye(3).to_sparse()}, Invalid, "'w'"),
    ("meta", {"w": torch.empty(3, device="meta")}, Invalid, "'w'"),
    ("type", {"w": torch.zeros(2, dtype=torch.float8_e4m3fnuz)}, Unsupported, "float8_e4m3fnuz"),
]


@pytest.mark.parametrize(("tensors", "error", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_no_tensor_is_refused_by_name(tensors, error, words):
    with pytest.raises(error) as caught:
        staged(tensors)
    assert words in str(caught.value)


def test_files_that_cannot_be_kept_are_refused():
    for files in ({"../x": b""}, {"model.safetensors": b""}, {"big": bytes((64 << 20) + 1)}):
        with pytest.raises(Invalid):
            staged({"w": np.ones(1)}, files)
