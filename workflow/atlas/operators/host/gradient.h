// The node of autograd's graph: backward in Python, or what it was seen to do, repeated.
#pragma once

#include <ATen/Context.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>

#include "repeating.h"

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePointer = decltype(Edge::function);

//
// A gradient in Python mostly passes what was saved and what arrived on to an operator, or views of these.  Watched
// once, it is a list of calls and where their arguments lie, which is repeated without Python as long as all that
// arrives has the same geometry, and torch's switches that a gradient may ask stand as they stood.

struct Place {  // a tensor, or a view of it
  enum Kind { saved, gradient, output } kind;
  int step, number;  // the step is that of an output
  bool whole;
  std::vector<int64_t> shape, stride;
  int64_t offset;  // in elements, from where the tensor begins
};

struct Argument {
  bool is_tensor;
  Place place;
  THPObjectPtr constant;
  int varying;  // its number among those that were kept, or -1
};

struct Step {
  std::shared_ptr<Operation> operation;  // or null, and:
  THPObjectPtr function;                 // one of torch's
  std::vector<Argument> arguments;
};

struct Pull {
  Words signature;  // the switches, and the geometry of what is saved and what arrives
  std::vector<Step> steps;
  std::vector<std::optional<Place>> results;  // by argument that is a tensor
  std::vector<int64_t> changes;               // by what is saved and what arrives: how often it is written in its place
  bool writes = false;                        // whether any of it is: then all is looked up before anything is done
};

// torch's switches, which a gradient in Python asks when it runs: its calls have arguments that follow from them.
void add_switches(Words& words) {
  THPObjectPtr precision(PyObject_CallNoArgs(world.precision));
  if (!precision) throw python_error();
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(precision.get(), &length);
  if (!text) throw python_error();
  int64_t word = 0;
  std::memcpy(&word, text, std::min<size_t>(length, sizeof word));
  words.push_back(word);
  words.push_back(at::globalContext().deterministicAlgorithms());
}

bool add_signature(const std::vector<Tensor>& tensors, Words& words) {
  for (const auto& one : tensors) {
    if (!one.defined())
      words.push_back(0);
    else if (!Given::add_geometry(one, words))
      return false;
  }
  return true;
}

struct Sources {  // the tensors that a place may be of
  const std::vector<Tensor>& saved;
  const std::vector<Tensor>& gradients;
  std::vector<Tensors> outputs;

  const Tensor& whole(const Place& place) const {
    if (place.kind == Place::saved) return saved[place.number];
    return place.kind == Place::gradient ? gradients[place.number] : outputs[place.step][place.number];
  }

  Tensor at(const Place& place) const {
    const Tensor& of = whole(place);
    return place.whole ? of : view_of(of, place.shape, place.stride, of.storage_offset() + place.offset);
  }

  // Where `x` lies; nothing where it is neither one of these tensors nor a view of just one.
  std::optional<Place> find(const Tensor& x) const {
    std::optional<Place> found;
    int views = 0;
    bool exact = false;
    const auto look = [&](const Tensor& one, Place::Kind kind, int step, int number) {
      if (exact || !one.defined() || !one.is_alias_of(x)) return;
      exact = one.is_same(x);
      views += !exact;
      if (exact || one.scalar_type() == x.scalar_type())
        found = Place{
            kind, step, number, exact, x.sizes().vec(), x.strides().vec(), x.storage_offset() - one.storage_offset()};
    };
    for (size_t i = 0; i < saved.size(); ++i) look(saved[i], Place::saved, 0, static_cast<int>(i));
    for (size_t i = 0; i < gradients.size(); ++i) look(gradients[i], Place::gradient, 0, static_cast<int>(i));
    for (size_t k = 0; k < outputs.size(); ++k)
      for (size_t i = 0; i < outputs[k].size(); ++i)
        look(outputs[k][i], Place::output, static_cast<int>(k), static_cast<int>(i));
    return exact || views == 1 ? found : std::nullopt;
  }
};

struct Backward : Node {
  Backward(torch::autograd::edge_list&& edges, std::string name, PyObject* pull, std::shared_ptr<Recipe> recipe)
      : Node(std::move(edges)), name_(std::move(name)), pull_(Py_NewRef(pull)), recipe_(std::move(recipe)) {}

  ~Backward() override {
    if (!Py_IsInitialized()) {  // nothing of Python's can be given back any more
      (void)pull_.release();
      (void)varying.release();
      new std::shared_ptr<Recipe>(std::move(recipe_));
      return;
    }
    const pybind11::gil_scoped_acquire gil;
    pull_ = nullptr;
    varying = nullptr;
    recipe_.reset();
  }

  std::string name() const override { return name_; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& one : saved) one.reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    const pybind11::gil_scoped_acquire gil;
    try {
      return pulled_back(std::move(gradients));
    } catch (python_error& error) {
      error.persist();
      throw;
    }
  }

  variable_list pulled_back(std::vector<Tensor>&& gradients) {
    std::vector<Tensor> kept(saved.size());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (size_t i = 0; i < saved.size(); ++i)
        if (recipe_->saved[i].first) kept[i] = saved[i].unpack(this->getptr());
    }
    for (size_t i = 0; recipe_->zeros && i < gradients.size(); ++i)
      if (!gradients[i].defined()) gradients[i] = input_metadata(i).zeros_like();
    Words signature;
    add_switches(signature);
    const bool plain = !at::GradMode::is_enabled() && !seen(false) && add_signature(kept, signature) &&
                       add_signature(gradients, signature);
    if (plain)
      for (const auto& pull : std::vector<std::shared_ptr<Pull>>(recipe_->pulls))
        if (pull->signature == signature)
          if (auto found = repeated(*pull, kept, gradients)) return *found;
    Noting notes;
    const bool learns = plain && recipe_->failures < most_failures && recipe_->pulls.size() < most_pulls;
    std::vector<int64_t> versions = learns ? versions_of(kept, gradients) : std::vector<int64_t>();
    THPObjectPtr result;
    {
      const Watch watch(learns ? &notes : nullptr);
      result = called(kept, gradients);
    }
    variable_list found(num_outputs());
    const bool several = PyTuple_Check(result.get());
    TORCH_CHECK(several ? PyTuple_GET_SIZE(result.get()) == arguments : arguments == 1, name_,
                " returned an incorrect number of gradients (expected ", arguments, ")");
    for (size_t i = 0; i < positions.size(); ++i) {
      PyObject* one = several ? PyTuple_GET_ITEM(result.get(), positions[i]) : result.get();
      if (one == Py_None) continue;
      TORCH_CHECK_TYPE(THPVariable_Check(one), name_, " returned a gradient that is no tensor");
      found[i] = THPVariable_Unpack(one);
    }
    if (learns && !notes.missed) {
      auto pull = pull_of(notes, kept, gradients, found);
      if (pull) pull->changes = changes_since(versions, notes, kept, gradients);
      if (pull && !pull->changes.empty()) {
        pull->signature = std::move(signature);
        recipe_->pulls.push_back(std::move(pull));
      } else {
        ++recipe_->failures;
      }
    }
    return found;
  }

  THPObjectPtr called(const std::vector<Tensor>& kept, const std::vector<Tensor>& gradients) {
    THPObjectPtr tuple(PyTuple_New(static_cast<Py_ssize_t>(kept.size())));
    if (!tuple) throw python_error();
    for (size_t i = 0; i < kept.size(); ++i)
      PyTuple_SET_ITEM(tuple.get(), i, kept[i].defined() ? THPVariable_Wrap(kept[i]) : Py_NewRef(Py_None));
    c10::SmallVector<THPObjectPtr, 12> owned;
    c10::SmallVector<PyObject*, 16> words{tuple.get(), recipe_->needs.get(), recipe_->attributes.get(), varying.get()};
    for (const auto& one : gradients) {
      owned.emplace_back(one.defined() ? THPVariable_Wrap(one) : Py_NewRef(Py_None));
      words.push_back(owned.back().get());
    }
    THPObjectPtr result(PyObject_Vectorcall(pull_.get(), words.data(), words.size(), nullptr));
    if (!result) throw python_error();
    return result;
  }

  static std::vector<int64_t> versions_of(const std::vector<Tensor>& kept, const std::vector<Tensor>& gradients) {
    std::vector<int64_t> found;
    for (const auto* some : {&kept, &gradients})
      for (const auto& one : *some) found.push_back(one.defined() && !one.is_inference() ? one._version() : 0);
    return found;
  }

  // How often each was written since it had its version, by calls that were watched; empty where others wrote, too.
  static std::vector<int64_t> changes_since(const std::vector<int64_t>& versions, Noting& notes,
                                            const std::vector<Tensor>& kept, const std::vector<Tensor>& gradients) {
    std::vector<int64_t> found = versions_of(kept, gradients);
    for (size_t i = 0; i < found.size(); ++i) {
      found[i] -= versions[i];
      if (!found[i]) continue;
      const Tensor& x = i < kept.size() ? kept[i] : gradients[i - kept.size()];
      const bool known = std::any_of(notes.calls.begin(), notes.calls.end(), [&](Noted& call) {
        for (size_t k = 0; call.operation && k < call.args.size(); ++k)
          if (call.operation->written >> k & 1 && THPVariable_Check(call.args[k].get()) &&
              THPVariable_Unpack(call.args[k].get()).is_same(x))
            return true;
        return false;
      });
      if (!known) return {};
    }
    return found;
  }

  // What was watched as a pull; null where it cannot be told in these terms.
  std::shared_ptr<Pull> pull_of(Noting& notes, const std::vector<Tensor>& kept, const std::vector<Tensor>& gradients,
                                const variable_list& found) {
    auto pull = std::make_shared<Pull>();
    bool of_outputs = false;
    Sources sources{kept, gradients, {}};
    for (auto& call : notes.calls) {
      if (!call.operation && sources.find(call.outputs[0])) continue;  // it gave what there was, or a view of that
      Step step{call.operation, THPObjectPtr(Py_XNewRef(call.function.get())), {}};
      pull->writes |= call.operation && call.operation->written;
      for (size_t i = 0; i < call.args.size(); ++i) {
        PyObject* value = call.args[i].get();
        Argument argument{THPVariable_Check(value), {}, {}, -1};
        if (argument.is_tensor) {
          auto place = sources.find(THPVariable_Unpack(value));
          if (!place) return nullptr;
          argument.place = *std::move(place);
          of_outputs |= argument.place.kind == Place::output;
        } else if (call.operation && call.operation->varying >> i & 1) {
          for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(varying.get()); ++k)
            if (PyTuple_GET_ITEM(varying.get(), k) == value) argument.varying = static_cast<int>(k);
          if (argument.varying < 0) return nullptr;
        } else {
          argument.constant = own(value);
        }
        step.arguments.push_back(std::move(argument));
      }
      pull->steps.push_back(std::move(step));
      for (const auto& one : call.outputs)
        if (one.is_inference() || one._version() != 0) return nullptr;  // something else was computed in its place
      sources.outputs.push_back(call.outputs);
    }
    if (pull->writes && of_outputs) return nullptr;  // not to be looked up beforehand
    for (const auto& one : found) {
      auto place = one.defined() ? sources.find(one) : std::nullopt;
      if (one.defined() && !place) return nullptr;
      pull->results.push_back(std::move(place));
    }
    return pull;
  }

  void give(Step& step, const Sources& sources, std::vector<Tensor>& tensors, Given& given) {
    tensors.reserve(step.arguments.size());
    for (auto& one : step.arguments) {
      if (one.is_tensor) {
        tensors.push_back(sources.at(one.place));
        given.add(&tensors.back(), nullptr);
      } else {
        given.add(nullptr, one.varying < 0 ? one.constant.get() : PyTuple_GET_ITEM(varying.get(), one.varying));
      }
    }
  }

  std::optional<variable_list> repeated(Pull& pull, const std::vector<Tensor>& kept,
                                        const std::vector<Tensor>& gradients) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Sources sources{kept, gradients, {}};
    if (pull.writes) {
      for (auto& step : pull.steps) {
        std::vector<Tensor> tensors;
        Given given;
        give(step, sources, tensors, given);
        if (step.operation && (!given.describe(*step.operation) || !given.find(*step.operation))) return std::nullopt;
      }
    }
    for (auto& step : pull.steps) {
      std::vector<Tensor> tensors;
      Given given;
      give(step, sources, tensors, given);
      if (!step.operation) {
        sources.outputs.push_back({of_torch(step.function.get(), given)});
        continue;
      }
      if (!given.describe(*step.operation)) return std::nullopt;
      const auto entry = given.find(*step.operation);
      if (!entry) return std::nullopt;
      sources.outputs.push_back(made(*entry, given));
    }
    for (size_t i = 0; i < pull.changes.size(); ++i)
      for (int64_t n = 0; n < pull.changes[i]; ++n)
        (i < kept.size() ? kept[i] : gradients[i - kept.size()]).unsafeGetTensorImpl()->bump_version();
    variable_list found;
    for (const auto& place : pull.results) found.push_back(place ? sources.at(*place) : Tensor());
    return found;
  }

  std::vector<SavedVariable> saved;
  THPObjectPtr varying;                 // values of arguments that differ from call to call
  c10::SmallVector<int, 12> positions;  // of the arguments that are tensors
  Py_ssize_t arguments = 0;

 private:
  static constexpr int most_failures = 4, most_pulls = 16;
  std::string name_;
  THPObjectPtr pull_;
  std::shared_ptr<Recipe> recipe_;
  std::mutex mutex_;
};

// A node in the pointer that this torch keeps nodes in: intrusive from 2.12 or so on, shared before.
template <class Pointer, class... Given>
std::pair<Pointer, Backward*> node_of(Given&&... given) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    auto* node = new Backward(std::forward<Given>(given)...);
    return {Pointer(node, [](auto* one) { deleteNode(one); }), node};
  } else {
    auto pointer = c10::make_intrusive<Backward>(std::forward<Given>(given)...);
    auto* node = pointer.get();
    return {Pointer(std::move(pointer)), node};
  }
}

void attach(const Given& given, const std::string& name, PyObject* pull, const std::shared_ptr<Recipe>& recipe,
            Tensors& outputs) {
  torch::autograd::edge_list edges;
  edges.reserve(given.tensors.size());
  for (const int number : given.tensors) edges.push_back(torch::autograd::impl::gradient_edge(given.tensor(number)));
  auto [pointer, node] = node_of<NodePointer>(std::move(edges), name, pull, recipe);
  node->arguments = static_cast<Py_ssize_t>(given.tensor_at.size());
  node->positions.append(given.tensors.begin(), given.tensors.end());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto number = node->add_input_metadata(outputs[i]);
    if (!(recipe->fixed >> i & 1) && torch::autograd::isDifferentiableType(outputs[i].scalar_type()))
      torch::autograd::impl::set_gradient_edge(outputs[i], {pointer, number});
  }
  node->saved.reserve(recipe->saved.size());
  for (const auto& [kind, number] : recipe->saved) {
    if (kind == 0)
      node->saved.emplace_back();
    else if (kind == 1)
      node->saved.emplace_back(given.tensor(number), false);
    else
      node->saved.emplace_back(outputs[number], true);
  }
  node->varying = THPObjectPtr(PyTuple_New(static_cast<Py_ssize_t>(recipe->varying.size())));
  if (!node->varying) throw python_error();
  for (size_t i = 0; i < recipe->varying.size(); ++i)
    PyTuple_SET_ITEM(node->varying.get(), i, Py_NewRef(given.scalar_at[recipe->varying[i]]));
}

}  // namespace
