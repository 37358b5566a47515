// What Python tells this module once, and whether a call is one that somebody has to see.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace {

// The driver's CUlaunchAttribute and CUlaunchConfig, whose headers need not be here.
struct Attribute {
  // spread: a cluster's scheduling policy preference; early: programmatic stream serialization
  enum Id : unsigned { cooperative = 2, cluster = 4, spread = 5, early = 6 } id;
  alignas(8) unsigned value[16];
};
struct Config {
  unsigned grid[3], threads[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
};
static_assert(sizeof(Attribute) == 72 && sizeof(Config) == 56);

using LaunchKernel = int (*)(const Config*, void*, void**, void**);
using GetContext = int (*)(void**);
using RetainContext = int (*)(void**, int);
using SetContext = int (*)(void*);
using ReplaceAddress = int (*)(void*, void*);

struct World {
  uint64_t plain = 0;              // the dispatch keys that a plain tensor may have
  PyObject* transforms = nullptr;  // whether a transform of torch.func is active
  PyObject* forward_ad = nullptr;  // the names of torch.autograd.forward_ad
  PyObject* entering = nullptr;    // Triton's hooks around launches
  PyObject* leaving = nullptr;
  PyObject* stream = nullptr;     // the address of a device's current stream
  PyObject* precision = nullptr;  // how torch is told to multiply fp32, as a word
  PyObject* level = nullptr;   // names of attributes
  PyObject* calls = nullptr;
  LaunchKernel launch = nullptr;  // the CUDA driver's
  GetContext get_context = nullptr;
  RetainContext retain_context = nullptr;
  SetContext set_context = nullptr;
  ReplaceAddress replace_address = nullptr;
} world;

bool says(PyObject* answer) {
  THPObjectPtr owned(answer);
  if (!owned) throw python_error();
  const int truth = PyObject_IsTrue(owned.get());
  if (truth < 0) throw python_error();
  return truth != 0;
}

// Whether somebody has to see the call: a mode, a transform, a derivative taken forwards, a hook of a profiler.
bool seen(bool from_dispatcher) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  if (!(local.included_ - c10::default_included_set).empty() || at::impl::torch_function_mode_enabled()) return true;
  if (says(PyObject_GetAttr(world.entering, world.calls)) || says(PyObject_GetAttr(world.leaving, world.calls)))
    return true;
  if (from_dispatcher) return false;
  if (says(PyObject_CallNoArgs(world.transforms))) return true;
  PyObject* level = PyDict_GetItemWithError(world.forward_ad, world.level);  // borrowed
  return level == nullptr || PyLong_AsLong(level) >= 0;
}

}  // namespace
