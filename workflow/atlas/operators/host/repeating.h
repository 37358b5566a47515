// A recording repeated: allocate, launch by the CUDA driver, or have Python do it; and who watches calls.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
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

struct Memory {  // of a call that is repeated
  const uint64_t *inputs, *varying;
  c10::SmallVector<uint64_t, 8> made;

  uint64_t address(const Slot& slot) const {
    switch (slot.kind) {
      case Slot::input: return inputs[slot.number] + slot.offset;
      case Slot::made: return made[slot.number] + slot.offset;
      case Slot::varying: return varying[slot.number];
      default: return slot.bits;
    }
  }
};

void launch(const Launch& one, const Memory& memory, void* stream) {
  c10::SmallVector<uint64_t, 48> values;
  c10::SmallVector<void*, 48> pointers;
  std::array<Bytes, most_maps> maps;
  values.reserve(one.slots.size());
  for (size_t i = 0; i < one.maps.size(); ++i) {
    maps[i] = one.maps[i].bytes;
    check(world.replace_address(&maps[i], reinterpret_cast<void*>(memory.address(one.maps[i].memory))),
          "cuTensorMapReplaceAddress");
  }
  for (const auto& slot : one.slots) {
    if (slot.kind == Slot::map) {
      pointers.push_back(&maps[slot.number]);
    } else {
      values.push_back(memory.address(slot));
      pointers.push_back(&values.back());
    }
  }
  std::array<Attribute, 4> attributes;
  const auto* g = one.grid;
  Config config{{g[0], g[1], g[2]}, {one.threads, 1, 1}, one.shared, stream, attributes.data(), 0};
  if (one.cooperative) attributes[config.count++] = {Attribute::cooperative, {1}};
  if (one.early) attributes[config.count++] = {Attribute::early, {1}};
  if (one.cluster > 1) {
    attributes[config.count++] = {Attribute::cluster, {one.cluster, 1, 1}};
    // As Triton's launcher asks for, which at the recorded call has allowed the function clusters of 16, too.
    attributes[config.count++] = {Attribute::spread, {1}};
  }
  check(world.launch(&config, one.function, pointers.data(), nullptr), "cuLaunchKernelEx");
}

Tensor computed(const Computation& one, const Given& given, const Tensors& made) {
  torch::jit::Stack stack = one.words;
  for (const auto& view : one.views) {
    const Tensor& whole = view.made ? made[view.number] : given.tensor(view.number);
    const int64_t begin = view.made ? 0 : whole.storage_offset();
    stack[view.position] = view.whole ? whole : view_of(whole, view.shape, view.stride, begin + view.offset);
  }
  one.function.callBoxed(&stack);
  return std::move(stack[0]).toTensor();
}

// Allocate and launch what `entry` holds; called without the GIL.
void repeat(const Entry& entry, const Given& given, const uint64_t* inputs, const uint64_t* varying, c10::Device device,
            void* stream, Tensors& made) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Memory memory{inputs, varying, {}};
  for (const auto& one : entry.allocations) {
    if (one.computed)
      made.emplace_back();
    else
      made.push_back(at::empty_strided(one.shape, one.stride, at::TensorOptions().dtype(one.dtype).device(device)));
    memory.made.push_back(one.computed ? 0 : address_of(made.back()));
  }
  bind_context(device);
  for (const auto& one : entry.launches) {
    if (!one.of_torch) {
      launch(one, memory, stream);
    } else if (Tensor result = computed(*one.of_torch, given, made); one.of_torch->made >= 0) {
      memory.made[one.of_torch->made] = address_of(result);
      made[one.of_torch->made] = std::move(result);
    }
    for (const int number : one.dropped) made[number].reset();
  }
}

Tensors outputs_of(const Entry& entry, const Given& given) {
  const c10::Device device = given.tensor(given.tensors[0]).device();
  uint64_t inputs[64], varying[64];
  for (const int number : given.tensors) inputs[number] = address_of(given.tensor(number));
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
    repeat(entry, given, inputs, varying, device, address, made);
  }
  for (const auto& one : entry.outputs) {
    const Tensor& whole = made[one.number];
    found.push_back(one.whole ? whole : view_of(whole, one.shape, one.stride, one.offset));
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
  } else if (result.get() != Py_None) {
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
  if (outputs.empty()) Py_RETURN_NONE;
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
