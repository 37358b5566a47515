// Calls that torch's dispatcher makes, which are those of compiled code: repeated without Python where that can be.
#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>

#include "repeating.h"

namespace {

// An argument as Python has it; null for what Python must see to.
THPObjectPtr object_of(const c10::IValue& value) {
  if (value.isNone()) return own(Py_None);
  if (value.isBool()) return own(value.toBool() ? Py_True : Py_False);
  if (value.isInt()) return THPObjectPtr(PyLong_FromLongLong(value.toInt()));
  if (value.isDouble()) return THPObjectPtr(PyFloat_FromDouble(value.toDouble()));
  if (!value.isString()) return THPObjectPtr();
  const auto& text = value.toStringRef();
  return THPObjectPtr(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

// The operator's kernel of one dispatch key: that of a device, or autograd's of it, where no gradient is wanted.
class Dispatched : public c10::OperatorKernel {
 public:
  Dispatched(std::shared_ptr<Operation> operation, bool of_autograd)
      : operation_(std::move(operation)), of_autograd_(of_autograd) {}

  // What is not repeated is Python's, whose kernels are those of every device: of one that there is not, too.
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (repeated(*stack, op.schema().arguments().size())) return;
    if (of_autograd_)
      keys = (keys & c10::after_autograd_keyset) | c10::DispatchKeySet(c10::DispatchKey::AutogradPrivateUse3);
    else
      keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse3);
    op.redispatchBoxed(keys, stack);
  }

 private:
  bool repeated(torch::jit::Stack& stack, size_t count) {
    const pybind11::gil_scoped_acquire gil;
    try {
      auto outputs = outputs_for(torch::jit::last(stack, count));
      if (!outputs) {
        if (noting) noting->missed = true;
        return false;
      }
      torch::jit::drop(stack, count);
      for (auto& one : *outputs) stack.emplace_back(std::move(one));
      return true;
    } catch (python_error& error) {
      error.persist();
      throw;
    }
  }

  std::optional<Tensors> outputs_for(c10::ArrayRef<c10::IValue> values) {
    if (seen(!of_autograd_)) return std::nullopt;
    Given given;
    c10::SmallVector<THPObjectPtr, 16> owned;
    for (const auto& value : values) {
      if (value.isTensor() && value.toTensor().defined()) {
        given.add(&value.toTensor(), nullptr);
        continue;
      }
      owned.push_back(value.isTensor() ? own(Py_None) : object_of(value));
      if (!owned.back()) {
        PyErr_Clear();
        return std::nullopt;
      }
      given.add(nullptr, owned.back().get());
    }
    if (!given.describe(*operation_) || (of_autograd_ && at::GradMode::is_enabled() && given.wanting()))
      return std::nullopt;
    const auto entry = given.find(*operation_);
    if (!entry) return std::nullopt;
    Tensors outputs = made(*entry, given);
    if (noting) {
      Noted noted{operation_, {}, {}, outputs};
      c10::SmallVector<THPObjectPtr, 16> wrapped;
      for (PyObject* one : given.objects_of(wrapped)) noted.args.push_back(own(one));
      noting->calls.push_back(std::move(noted));
    }
    return outputs;
  }

  std::shared_ptr<Operation> operation_;
  bool of_autograd_;
};

// Where the dispatcher finds them, as long as this lives.
std::unique_ptr<torch::Library> dispatched(const std::string& name, std::shared_ptr<Operation> operation,
                                           bool of_autograd) {
  const auto keys = c10::DispatchKeySet::from_raw_repr(world.plain);
  const auto level = of_autograd ? c10::DispatchKey::AutogradFunctionality : c10::DispatchKey::Dense;
  const auto key = c10::toRuntimePerBackendFunctionalityKey(level, keys.highestBackendKey());
  const auto place = name.find("::");
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, name.substr(0, place), key, __FILE__, __LINE__);
  library->impl(name.substr(place + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Dispatched>(
                                                    std::move(operation), of_autograd)));
  return library;
}

}  // namespace
