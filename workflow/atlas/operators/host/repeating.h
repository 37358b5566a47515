// A recording repeated: allocate, launch by the CUDA driver, or have Python do it; and who watches calls.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "recording.h"

namespace {

void check(int status, const char* what) { TORCH_CHECK(status == 0, what, " failed: CUDA driver error ", status); }

// Give this thread the context of its current device, if it has none: an allocation from torch's cache binds none.
void bind_context(c10::Device device) {
  if (!world.get_context) return;
  void* context = nullptr;
  check(world.get_context(&context), "cuCtxGetCurrent");
  if (context) return;
  check(world.retain_context(&context, device.index()), "cuDevicePrimaryCtxRetain");
  check(world.set_context(context), "cuCtxSetCurrent");
}

// Allocate and launch what `entry` holds; called without the GIL.
void repeat(const Entry& entry, const uint64_t* inputs, const uint64_t* varying, c10::Device device, void* stream,
            Tensors& made) {
  const at::AutoDispatchBelowADInplaceOrView below;
  c10::SmallVector<uint64_t, 6> addresses;
  for (const auto& one : entry.allocations) {
    made.push_back(at::empty_strided(one.shape, one.stride, at::TensorOptions().dtype(one.dtype).device(device)));
    addresses.push_back(reinterpret_cast<uint64_t>(made.back().mutable_data_ptr()));
  }
  bind_context(device);
  for (const auto& one : entry.launches) {
    c10::SmallVector<uint64_t, 40> values;
    c10::SmallVector<void*, 40> pointers;
    values.reserve(one.slots.size());
    for (const auto& slot : one.slots) {
      switch (slot.kind) {
        case Slot::input: values.push_back(inputs[slot.number] + slot.offset); break;
        case Slot::made: values.push_back(addresses[slot.number] + slot.offset); break;
        case Slot::varying: values.push_back(varying[slot.number]); break;
        case Slot::constant: values.push_back(slot.bits); break;
      }
    }
    for (auto& value : values) pointers.push_back(&value);
    const auto* g = one.grid;
    if (one.cooperative)
      check(world.cooperative(one.function, g[0], g[1], g[2], one.threads, 1, 1, one.shared, stream, pointers.data()),
            "cuLaunchCooperativeKernel");
    else
      check(
          world.launch(one.function, g[0], g[1], g[2], one.threads, 1, 1, one.shared, stream, pointers.data(), nullptr),
          "cuLaunchKernel");
  }
}

Tensors outputs_of(const Entry& entry, const Given& given) {
  const c10::Device device = given.tensor(given.tensors[0]).device();
  uint64_t inputs[64], varying[64];
  for (const int number : given.tensors) inputs[number] = Given::address_of(given.tensor(number));
  for (const auto& one : entry.launches)
    for (const auto& slot : one.slots)
      if (slot.kind == Slot::varying) {
        varying[slot.number] = static_cast<uint64_t>(PyLong_AsLongLong(given.scalar_at[slot.number]));
        if (PyErr_Occurred()) throw python_error();
      }
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional<c10::Device>(device));
  THPObjectPtr index(PyLong_FromLong(device.index()));
  THPObjectPtr stream(PyObject_CallOneArg(world.stream, index.get()));
  if (!stream) throw python_error();
  void* address = PyLong_AsVoidPtr(stream.get());
  if (!address && PyErr_Occurred()) throw python_error();
  Tensors made, found;
  {
    pybind11::gil_scoped_release no_gil;
    repeat(entry, inputs, varying, device, address, made);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const auto& one : entry.outputs) {
    const Tensor& whole = made[one.number];
    found.push_back(one.whole ? whole : at::as_strided(whole, one.shape, one.stride, one.offset));
  }
  return found;
}

// Calls made in this thread while a gradient in Python is watched.
struct Noted {
  std::shared_ptr<Operation> operation;  // or null, and:
  THPObjectPtr function;                 // one of torch's
  std::vector<THPObjectPtr> args;
  Tensors outputs;
};

struct Noting {
  std::vector<Noted> calls;
  bool missed = false;  // a call was made by Python
};

thread_local Noting* noting = nullptr;

struct Watch {  // `noting` for as long as this lives
  explicit Watch(Noting* now) : before(std::exchange(noting, now)) {}
  ~Watch() { noting = before; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  Noting* before;
};

Tensors outputs_by_function(Entry& entry, const Given& given) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::AutoGradMode no_gradients(false);
  const Watch nobody(nullptr);
  c10::SmallVector<THPObjectPtr, 16> owned;
  THPObjectPtr result(
      PyObject_Vectorcall(entry.repeat.get(), given.objects_of(owned).data(), given.tensor_at.size(), nullptr));
  if (!result) throw python_error();
  Tensors found;
  if (entry.single) {
    found.push_back(THPVariable_Unpack(result.get()));
  } else {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result.get()); ++i)
      found.push_back(THPVariable_Unpack(PyTuple_GET_ITEM(result.get(), i)));
  }
  return found;
}

// What a function of torch gives, which is one tensor.
Tensor of_torch(PyObject* function, const Given& given) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  c10::SmallVector<THPObjectPtr, 16> owned;
  THPObjectPtr result(PyObject_Vectorcall(function, given.objects_of(owned).data(), given.tensor_at.size(), nullptr));
  if (!result) throw python_error();
  TORCH_CHECK_TYPE(THPVariable_Check(result.get()), "a step of a gradient gives no tensor");
  return THPVariable_Unpack(result.get());
}

Tensors made(Entry& entry, const Given& given) {
  return entry.repeat ? outputs_by_function(entry, given) : outputs_of(entry, given);
}

PyObject* wrapped(const Entry& entry, Tensors& outputs) {
  if (entry.single) return THPVariable_Wrap(std::move(outputs[0]));
  THPObjectPtr tuple(PyTuple_New(static_cast<Py_ssize_t>(outputs.size())));
  if (!tuple) throw python_error();
  for (size_t i = 0; i < outputs.size(); ++i) {
    PyObject* one = THPVariable_Wrap(std::move(outputs[i]));
    if (!one) throw python_error();
    PyTuple_SET_ITEM(tuple.get(), i, one);
  }
  return tuple.release();
}

}  // namespace
