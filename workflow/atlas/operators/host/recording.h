// What a recording holds, and the arguments of a call with the key under which its recording is found.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided_native.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "world.h"

namespace {

using at::Tensor;
using Words = c10::SmallVector<int64_t, 64>;
using Tensors = c10::SmallVector<Tensor, 6>;

struct Allocation {
  std::vector<int64_t> shape, stride;
  at::ScalarType dtype;
  bool computed;  // torch makes it, in one of the launches
};

struct Slot {  // one argument of a kernel
  enum Kind : int { input, made, varying, constant, map } kind;
  int number;      // of the input, allocation, varying argument or map
  int64_t offset;  // bytes from where that begins
  uint64_t bits;   // of a constant
};

struct alignas(64) Bytes {  // of the copy engine's map of a tensor
  std::array<char, 128> bytes;
};

constexpr size_t most_maps = 8;  // of a launch

struct Map {
  Slot memory;
  Bytes bytes;  // of a tensor at some address
};

struct View {  // a tensor that torch is given
  int position;
  bool made, whole;
  int number;
  std::vector<int64_t> shape, stride;
  int64_t offset;  // in elements, from where the tensor begins
};

struct Computation {  // what torch computes between launches
  c10::OperatorHandle function;
  torch::jit::Stack words;  // its arguments, but for the views
  std::vector<View> views;
  int made;  // the allocation that it gives, or -1
};

struct Launch {
  std::unique_ptr<Computation> of_torch;  // or null, and a kernel:
  void* function;
  unsigned grid[3], threads, shared;
  bool cooperative, early;  // early: it may begin before the launch before it has ended
  unsigned cluster;         // blocks of a cluster, 1: there are none
  std::vector<Slot> slots;
  std::vector<Map> maps;
  std::vector<int> dropped;  // allocations that nothing uses afterwards
};

struct Output {
  int number;  // of the allocation
  bool whole;
  std::vector<int64_t> shape, stride;
  int64_t offset;  // in elements
};

struct Pull;

struct Recipe {                            // what autograd keeps of a call
  uint64_t wanting;                        // the arguments that want a gradient
  PyObject* pull;                          // whose it is; borrowed, it lives as long as the gradient
  std::vector<std::pair<int, int>> saved;  // (0: nothing, 1: an argument, 2: an output; its number)
  uint64_t fixed;                          // the outputs that have no gradient
  bool zeros;                              // gradients that did not arrive are zeros
  std::vector<int> varying;
  THPObjectPtr needs, attributes;  // for the context that backward is given
  std::vector<std::shared_ptr<Pull>> pulls;
  int failures = 0;  // to find a pull
};

struct Entry {
  Words words;
  std::vector<THPObjectPtr> objects;  // what of the key is neither a number nor a tensor
  THPObjectPtr repeat;                // a function that makes the call, or else:
  std::vector<Allocation> allocations;
  std::vector<Launch> launches;
  std::vector<Output> outputs;
  bool single = true;
  std::vector<THPObjectPtr> kept;  // tensors whose addresses are constants
  std::vector<std::shared_ptr<Recipe>> recipes;
};

struct Operation {
  uint64_t varying = 0;  // the arguments that differ from call to call
  uint64_t written = 0;  // those that are computed in their place
  THPObjectPtr state;    // what the call asks of torch's global state, or null
  std::unordered_multimap<uint64_t, std::shared_ptr<Entry>> entries;
};

uint64_t address_of(const Tensor& x) { return reinterpret_cast<uint64_t>(x.mutable_data_ptr()); }

// A view of a plain tensor, past torch's dispatcher.
Tensor view_of(const Tensor& whole, at::IntArrayRef shape, at::IntArrayRef stride, int64_t offset) {
  return at::native::as_strided_tensorimpl(whole, shape, stride, offset);
}

// A reference of our own, that is given back with the pointer.
THPObjectPtr own(PyObject* object) { return THPObjectPtr(Py_NewRef(object)); }

struct Given {                                    // the arguments of a call, and its key
  c10::SmallVector<const Tensor*, 16> tensor_at;  // by argument; null for what is none
  c10::SmallVector<PyObject*, 16> scalar_at;      // null for a tensor
  Words words;
  c10::SmallVector<PyObject*, 4> objects;
  THPObjectPtr state;
  c10::SmallVector<int, 12> tensors;  // the numbers of the arguments that are tensors
  uint64_t hash = 0;

  const Tensor& tensor(int number) const { return *tensor_at[number]; }

  void add(const Tensor* tensor, PyObject* scalar) {
    tensor_at.push_back(tensor);
    scalar_at.push_back(scalar);
  }

  // False where the call is not plain.
  bool read(Operation& operation, PyObject* const* args, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; ++i) {
      const bool is_tensor = THPVariable_CheckExact(args[i]);
      add(is_tensor ? &THPVariable_Unpack(args[i]) : nullptr, is_tensor ? nullptr : args[i]);
    }
    return describe(operation);
  }

  bool describe(Operation& operation) {
    if (tensor_at.size() > 64) return false;
    for (size_t i = 0; i < tensor_at.size(); ++i) {
      PyObject* value = scalar_at[i];
      if (tensor_at[i]) {
        if (!describe_tensor(static_cast<int>(i))) return false;
      } else if (value == Py_None) {
        words.push_back(0);
      } else if (operation.varying >> i & 1) {
        if (!PyLong_CheckExact(value)) return false;
        words.push_back(1);
      } else if (value == Py_True || value == Py_False) {
        words.push_back(value == Py_True ? 3 : 2);
      } else if (PyLong_CheckExact(value)) {
        int overflow = 0;
        const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow) return false;
        words.push_back(4);
        words.push_back(number);
      } else if (PyFloat_CheckExact(value)) {
        const double number = PyFloat_AS_DOUBLE(value);
        int64_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        words.push_back(5);
        words.push_back(bits);
      } else if (PyUnicode_CheckExact(value)) {
        words.push_back(6);
        objects.push_back(value);
      } else {
        return false;
      }
    }
    if (tensors.empty()) return false;
    if (operation.state) {
      c10::SmallVector<THPObjectPtr, 16> owned;
      state =
          THPObjectPtr(PyObject_Vectorcall(operation.state.get(), objects_of(owned).data(), tensor_at.size(), nullptr));
      if (!state) throw python_error();
      objects.push_back(state.get());
    }
    digest();
    return true;
  }

  bool describe_tensor(int number) {
    const Tensor& x = tensor(number);
    int64_t same = -1;  // the first argument that is the same tensor
    for (const int other : tensors) {
      if (tensor(other).is_same(x)) {
        same = other;
        break;
      }
    }
    tensors.push_back(number);
    words.push_back(same);
    return add_geometry(x, words);
  }

  // What a recording depends on of one tensor; false where that is not plain.
  static bool add_geometry(const Tensor& x, Words& words) {
    if (x.key_set().raw_repr() & ~world.plain) return false;
    const auto shape = x.sizes(), stride = x.strides();
    words.push_back(7 | static_cast<int64_t>(shape.size()) << 8 | static_cast<int64_t>(x.scalar_type()) << 16 |
                    static_cast<int64_t>(address_of(x) & 15) << 32 |
                    static_cast<int64_t>(x.device().index() + 1) << 40);
    words.append(shape.begin(), shape.end());
    words.append(stride.begin(), stride.end());
    return true;
  }

  // The arguments as Python has them.
  c10::SmallVector<PyObject*, 16> objects_of(c10::SmallVector<THPObjectPtr, 16>& owned) const {
    c10::SmallVector<PyObject*, 16> found;
    for (size_t i = 0; i < tensor_at.size(); ++i) {
      if (tensor_at[i]) {
        owned.emplace_back(THPVariable_Wrap(*tensor_at[i]));
        found.push_back(owned.back().get());
      } else {
        found.push_back(scalar_at[i]);
      }
    }
    return found;
  }

  void digest() {
    hash = words.size();
    for (const int64_t word : words) hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
    for (PyObject* object : objects) {
      const Py_hash_t of = PyObject_Hash(object);
      if (of == -1) throw python_error();
      hash = (hash ^ static_cast<uint64_t>(of)) * 0x9E3779B97F4A7C15ull;
    }
  }

  std::shared_ptr<Entry> find(Operation& operation) const {
    const auto [first, last] = operation.entries.equal_range(hash);
    for (auto at = first; at != last; ++at) {
      Entry& entry = *at->second;
      if (entry.words != words || entry.objects.size() != objects.size()) continue;
      bool equal = true;
      for (size_t i = 0; equal && i < objects.size(); ++i) {
        const int found = PyObject_RichCompareBool(entry.objects[i].get(), objects[i], Py_EQ);
        if (found < 0) throw python_error();
        equal = found;
      }
      if (equal) return at->second;
    }
    return nullptr;
  }

  uint64_t wanting() const {
    uint64_t found = 0;
    for (const int number : tensors) found |= static_cast<uint64_t>(tensor(number).requires_grad()) << number;
    return found;
  }
};

}  // namespace
