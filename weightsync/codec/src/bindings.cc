// The Python module `_kernel`: buffers in, bytes and arrays out, the GIL released while it computes.
// A frame that breaks a rule raises ValueError; `api.py` turns that into `Corrupt`.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "kernels.h"
#include "limits.h"

namespace nb = nanobind;
using namespace weightsync;

namespace {

// A contiguous buffer, held for the length of a call.
class Buffer {
  public:
    explicit Buffer(nb::handle object, int flags = PyBUF_ND) {
        if (PyObject_GetBuffer(object.ptr(), &view_, flags | PyBUF_C_CONTIGUOUS) != 0) nb::raise_python_error();
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }
    size_t bytes() const { return static_cast<size_t>(view_.len); }
    size_t item_bytes() const { return static_cast<size_t>(view_.itemsize); }

    size_t lanes(size_t lane_bytes) const {
        if (bytes() % lane_bytes) throw nb::value_error("the buffer is no whole number of lanes");
        if (bytes() / lane_bytes > kMaxLanes) throw nb::value_error("the chunk has too many lanes");
        return bytes() / lane_bytes;
    }

    const uint32_t* positions() const {
        if (item_bytes() != 4) throw nb::value_error("positions are not 32 bits wide");
        return reinterpret_cast<const uint32_t*>(data());
    }

  private:
    Py_buffer view_;
};

struct FreeMemory {
    void operator()(void* data) const { std::free(data); }
};
using Memory = std::unique_ptr<uint8_t, FreeMemory>;

Memory allocate(size_t bytes) {
    auto* data = static_cast<uint8_t*>(std::malloc(bytes ? bytes : 1));
    if (data == nullptr) throw std::bad_alloc();
    return Memory(data);
}

// Hands `memory` over to a one-dimensional NumPy array of unsigned integers.
nb::object array(Memory memory, size_t count, size_t item_bytes) {
    void* data = memory.release();
    nb::capsule owner(data, [](void* held) noexcept { std::free(held); });
    nb::dlpack::dtype type{static_cast<uint8_t>(nb::dlpack::dtype_code::UInt), static_cast<uint8_t>(8 * item_bytes), 1};
    size_t shape[1] = {count};
    return nb::ndarray<nb::numpy>(data, 1, shape, owner, nullptr, type).cast();
}

Spec checked_spec(uint32_t code) {
    Spec spec = Spec::unpack(code);
    if (!spec.valid()) throw nb::value_error("this is no element type");
    return spec;
}

unsigned checked_width(size_t lane_bytes) {
    if (lane_bytes != 1 && lane_bytes != 2 && lane_bytes != 4 && lane_bytes != 8) throw nb::value_error("lanes have 1, 2, 4 or 8 bytes");
    return static_cast<unsigned>(lane_bytes);
}

EncodeJob encode_job(uint32_t code, const Buffer& before, const Buffer& after, uint64_t first_lane, unsigned classes) {
    Spec spec = checked_spec(code);
    if (before.bytes() != after.bytes()) throw nb::value_error("old and new chunk differ in length");
    if (classes > kMaxClasses) throw nb::value_error("there are too many classes");
    return {spec, before.data(), after.data(), before.lanes(spec.lane_bytes), first_lane, classes};
}

nb::tuple encode_classgap(uint32_t code, nb::handle old_chunk, nb::handle new_chunk, uint64_t first_lane, unsigned classes) {
    Buffer before(old_chunk), after(new_chunk);
    EncodeJob job = encode_job(code, before, after, first_lane, classes);
    EncodeResult result;
    {
        nb::gil_scoped_release unlocked;
        result = kernels().encode(job);
    }
    if (result.dense) return nb::make_tuple(nb::none(), 0, 0);
    return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(result.frame), result.frame_bytes), result.changed, result.sum_delta);
}

struct ArrayOutput final : Output {
    Memory position_memory, value_memory;
    void allocate(size_t changes, size_t lane_bytes) override {
        position_memory = ::allocate(changes * sizeof(uint32_t));
        value_memory = ::allocate(changes * lane_bytes);
        positions = reinterpret_cast<uint32_t*>(position_memory.get());
        values = value_memory.get();
    }
};

nb::tuple run_decoder(const DecodeJob& job) {
    ArrayOutput output;
    const char* error;
    {
        nb::gil_scoped_release unlocked;
        error = kernels().decode(job, output);
    }
    if (error) throw nb::value_error(error);
    return nb::make_tuple(array(std::move(output.position_memory), output.count, sizeof(uint32_t)),
                          array(std::move(output.value_memory), output.count, job.spec.lane_bytes));
}

nb::tuple decode_classgap(uint32_t code, nb::handle frame, nb::handle base) {
    Spec spec = checked_spec(code);
    Buffer bytes(frame), chunk(base);
    return run_decoder({spec, bytes.data(), bytes.bytes(), chunk.lanes(spec.lane_bytes), chunk.data()});
}

nb::tuple decode_differences(uint32_t code, nb::handle frame, size_t lanes) {
    Spec spec = checked_spec(code);
    Buffer bytes(frame);
    if (lanes > kMaxLanes) throw nb::value_error("the chunk has too many lanes");
    return run_decoder({spec, bytes.data(), bytes.bytes(), lanes, nullptr});
}

// All nibble planes of a chunk.
size_t nibble_bytes(size_t lanes, size_t lane_bytes) { return (lanes + 1) / 2 * 2 * lane_bytes; }

nb::tuple difference_planes(uint32_t code, nb::handle old_chunk, nb::handle new_chunk, uint64_t first_lane) {
    Buffer before(old_chunk), after(new_chunk);
    EncodeJob job = encode_job(code, before, after, first_lane, 0);
    size_t plane_bytes = nibble_bytes(job.lanes, job.spec.lane_bytes);
    Memory planes = allocate(plane_bytes);
    Totals totals;
    {
        nb::gil_scoped_release unlocked;
        totals = kernels().difference_planes(job, planes.get());
    }
    return nb::make_tuple(array(std::move(planes), plane_bytes, 1), totals.changed, totals.sum_delta);
}

nb::object apply_difference_planes(uint32_t code, nb::handle plane_bytes, nb::handle base) {
    Spec spec = checked_spec(code);
    Buffer planes(plane_bytes), chunk(base);
    size_t lanes = chunk.lanes(spec.lane_bytes);
    if (planes.bytes() != nibble_bytes(lanes, spec.lane_bytes)) throw nb::value_error("planes and base differ in length");
    Memory out = allocate(chunk.bytes());
    {
        nb::gil_scoped_release unlocked;
        kernels().apply_difference_planes(spec, planes.data(), chunk.data(), lanes, out.get());
    }
    return array(std::move(out), chunk.bytes(), 1);
}

nb::object differences_of_planes(nb::handle plane_bytes, size_t lanes, size_t lane_bytes) {
    unsigned width = checked_width(lane_bytes);
    Buffer planes(plane_bytes);
    if (lanes > kMaxLanes || planes.bytes() != nibble_bytes(lanes, width)) throw nb::value_error("the planes do not hold so many lanes");
    Memory out = allocate(lanes * width);
    {
        nb::gil_scoped_release unlocked;
        kernels().differences_of_planes(width, planes.data(), lanes, out.get());
    }
    return array(std::move(out), lanes, width);
}

using PlaneOperation = void (*)(unsigned, const uint8_t*, size_t, uint8_t*);

nb::object rearrange(nb::handle data, size_t lane_bytes, PlaneOperation operation) {
    unsigned width = checked_width(lane_bytes);
    Buffer in(data);
    size_t lanes = in.lanes(width);
    Memory out = allocate(in.bytes());
    {
        nb::gil_scoped_release unlocked;
        operation(width, in.data(), lanes, out.get());
    }
    return array(std::move(out), in.bytes(), 1);
}

uint64_t chunk_sum(nb::handle data, size_t lane_bytes, uint64_t first_lane) {
    unsigned width = checked_width(lane_bytes);
    Buffer in(data);
    size_t lanes = in.lanes(width);
    nb::gil_scoped_release unlocked;
    return kernels().chunk_sum(width, in.data(), lanes, first_lane);
}

uint64_t changes_sum(nb::handle positions, nb::handle old_values, nb::handle new_values, uint64_t first_lane) {
    Buffer places(positions), before(old_values), after(new_values);
    unsigned width = checked_width(after.item_bytes());
    const uint32_t* at = places.positions();
    size_t count = places.bytes() / 4;
    if (before.item_bytes() != width || before.bytes() != count * width || after.bytes() != count * width)
        throw nb::value_error("positions and values differ in number or width");
    nb::gil_scoped_release unlocked;
    return kernels().changes_sum(width, at, before.data(), after.data(), count, first_lane);
}

nb::object gather(nb::handle source, nb::handle positions, size_t lane_bytes) {
    unsigned width = checked_width(lane_bytes);
    Buffer data(source), places(positions);
    const uint32_t* at = places.positions();
    size_t count = places.bytes() / 4;
    if (data.bytes() % width) throw nb::value_error("the buffer is no whole number of lanes");
    Memory out = allocate(count * width);
    bool done;
    {
        nb::gil_scoped_release unlocked;
        done = kernels().gather(width, data.data(), data.bytes() / width, at, count, out.get());
    }
    if (!done) throw nb::value_error("a position lies beyond the end");
    return array(std::move(out), count, width);
}

void scatter(nb::handle target, nb::handle positions, nb::handle values) {
    Buffer data(target, PyBUF_ND | PyBUF_WRITABLE), places(positions), lanes(values);
    unsigned width = checked_width(lanes.item_bytes());
    const uint32_t* at = places.positions();
    size_t count = places.bytes() / 4;
    if (lanes.bytes() != count * width) throw nb::value_error("positions and values differ in number");
    if (data.bytes() % width) throw nb::value_error("the buffer is no whole number of lanes");
    bool done;
    {
        nb::gil_scoped_release unlocked;
        done = kernels().scatter(width, data.data(), data.bytes() / width, at, count, lanes.data());
    }
    if (!done) throw nb::value_error("a position lies beyond the end");
}

}  // namespace

NB_MODULE(_kernel, module) {
    module.def("level", [] { return kernels().name; });
    module.def("use_level", [](const std::string& name) { return use_level(name.c_str()); });
    module.def("encode_classgap", &encode_classgap);
    module.def("decode_classgap", &decode_classgap);
    module.def("decode_differences", &decode_differences);
    module.def("difference_planes", &difference_planes);
    module.def("apply_difference_planes", &apply_difference_planes);
    module.def("differences_of_planes", &differences_of_planes);
    module.def("split_planes", [](nb::handle data, size_t lane_bytes) { return rearrange(data, lane_bytes, kernels().split_planes); });
    module.def("join_planes", [](nb::handle planes, size_t lane_bytes) { return rearrange(planes, lane_bytes, kernels().join_planes); });
    module.def("chunk_sum", &chunk_sum);
    module.def("changes_sum", &changes_sum);
    module.def("gather", &gather);
    module.def("scatter", &scatter);
}
