// The eager call of a recorded operator in C++: look the recording up, allocate, launch, and tell autograd.
//
// It does what call.py, plan.py and the autograd function of operator.py do, for calls that are as plain as can be:
// every other one is answered with NotImplemented, and Python makes it.  native.py builds and configures this.

#include "dispatching.h"
#include "gradient.h"

#include <ATen/record_function.h>
#include <structmember.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

namespace {

struct Call {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::shared_ptr<Operation> operation;
  std::string name;
  PyObject* pull;  // of one that has a gradient
  std::vector<std::unique_ptr<torch::Library>> libraries;
};

PyObject* left_to_python() {
  if (noting) noting->missed = true;
  Py_RETURN_NOTIMPLEMENTED;
}

PyObject* made_call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* call = reinterpret_cast<Call*>(self);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  Given given;
  if (names || seen(false) || !given.read(*call->operation, args, count)) return left_to_python();
  const auto entry = given.find(*call->operation);
  if (!entry) return left_to_python();
  std::shared_ptr<Recipe> recipe;
  if (call->pull && at::GradMode::is_enabled()) {
    if (const uint64_t wanting = given.wanting()) {
      for (const auto& one : entry->recipes)
        if (one->wanting == wanting && one->pull == call->pull) recipe = one;
      if (!recipe) return left_to_python();
    }
  }
  RECORD_FUNCTION(call->name, c10::ArrayRef<const c10::IValue>{});
  Tensors outputs = made(*entry, given);
  if (recipe) attach(given, call->name, call->pull, recipe, outputs);
  if (noting) {
    Noted noted{call->operation, {}, {}, outputs};
    for (Py_ssize_t i = 0; i < count; ++i) noted.args.push_back(own(args[i]));
    noting->calls.push_back(std::move(noted));
  }
  return wrapped(*entry, outputs);
  END_HANDLE_TH_ERRORS
}

// step(function, *args): function(*args), which belongs to the gradient that is watched
PyObject* step(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  THPObjectPtr result(PyObject_Vectorcall(args[0], args + 1, count - 1, nullptr));
  if (!result) return nullptr;
  if (noting) {
    Noted noted{nullptr, own(args[0]), {}, {}};
    for (Py_ssize_t i = 1; i < count; ++i) noted.args.push_back(own(args[i]));
    if (THPVariable_Check(result.get()))
      noted.outputs.push_back(THPVariable_Unpack(result.get()));
    else
      noting->missed = true;
    noting->calls.push_back(std::move(noted));
  }
  return result.release();
  END_HANDLE_TH_ERRORS
}

// missed(): something was launched that is no call of an operator
PyObject* missed(PyObject*, PyObject*) {
  if (noting) noting->missed = true;
  Py_RETURN_NONE;
}

std::vector<int64_t> numbers(PyObject* tuple) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    if (PyErr_Occurred()) throw python_error();
  }
  return found;
}

void parse(PyObject* tuple, const char* format, ...) {
  va_list targets;
  va_start(targets, format);
  const int fine = PyArg_VaParse(tuple, format, targets);
  va_end(targets);
  if (!fine) throw python_error();
}

PyObject* item(PyObject* tuple, Py_ssize_t number) { return PyTuple_GET_ITEM(tuple, number); }

// What a function of torch is given as `type`; what that is not for certain is refused by operators/direct.py.
c10::IValue value_of(PyObject* value, const c10::TypePtr& type) {
  if (value == Py_None) return {};
  if (type->kind() == c10::TypeKind::OptionalType)
    return value_of(value, type->castRaw<c10::OptionalType>()->getElementType());
  if (THPDtype_Check(value)) return static_cast<int64_t>(reinterpret_cast<THPDtype*>(value)->scalar_type);
  if (THPLayout_Check(value)) return static_cast<int64_t>(reinterpret_cast<THPLayout*>(value)->layout);
  if (THPMemoryFormat_Check(value))
    return static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(value)->memory_format);
  if (THPDevice_Check(value)) return reinterpret_cast<THPDevice*>(value)->device;
  if (PyBool_Check(value)) return value == Py_True;
  if (PyFloat_Check(value)) return PyFloat_AS_DOUBLE(value);
  if (PyTuple_Check(value)) return numbers(value);
  const long long number = PyLong_AsLongLong(value);
  if (PyErr_Occurred()) throw python_error();
  if (type->kind() == c10::TypeKind::FloatType) return static_cast<double>(number);
  return static_cast<int64_t>(number);
}

// (name, overload, (argument, …), (view, …), made), the arguments with None in the place of views
std::unique_ptr<Computation> computation(PyObject* words) {
  const char *name, *overload;
  PyObject *arguments, *views;
  int made;
  parse(words, "ssO!O!i", &name, &overload, &PyTuple_Type, &arguments, &PyTuple_Type, &views, &made);
  auto function = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  const auto& declared = function.schema().arguments();
  torch::jit::Stack stack;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i)
    stack.push_back(value_of(item(arguments, i), declared.at(i).type()));
  auto one = std::make_unique<Computation>(Computation{function, std::move(stack), {}, made});
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(views); ++i) {
    PyObject *shape, *stride;
    int position, of_made, whole, number;
    long long offset;
    parse(item(views, i), "ippiO!O!L", &position, &of_made, &whole, &number, &PyTuple_Type, &shape, &PyTuple_Type,
          &stride, &offset);
    one->views.push_back({position, of_made != 0, whole != 0, number, numbers(shape), numbers(stride), offset});
  }
  return one;
}

Slot slot_of(PyObject* words) {
  int kind, number;
  long long offset;
  unsigned long long bits;
  parse(words, "iiLK", &kind, &number, &offset, &bits);
  return {static_cast<Slot::Kind>(kind), number, offset, bits};
}

// (function, grid, threads, shared, cooperative, early, cluster, (slot, …), ((slot, bytes), …))
void fill(Launch& one, PyObject* words) {
  PyObject *slots, *maps;
  unsigned long long function;
  int cooperative, early;
  parse(words, "K(III)IIppIO!O!", &function, &one.grid[0], &one.grid[1], &one.grid[2], &one.threads, &one.shared,
        &cooperative, &early, &one.cluster, &PyTuple_Type, &slots, &PyTuple_Type, &maps);
  one.function = reinterpret_cast<void*>(function);
  one.cooperative = cooperative;
  one.early = early;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); ++i) one.slots.push_back(slot_of(item(slots, i)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(maps); ++i) {
    PyObject *memory, *bytes;
    parse(item(maps, i), "O!O!", &PyTuple_Type, &memory, &PyBytes_Type, &bytes);
    Map map{slot_of(memory), {}};
    TORCH_CHECK(PyBytes_GET_SIZE(bytes) == sizeof map.bytes && one.maps.size() < most_maps,
                "a map has 128 bytes, a launch at most 8 maps");
    std::memcpy(&map.bytes, PyBytes_AS_STRING(bytes), sizeof map.bytes);
    one.maps.push_back(map);
  }
}

// ((allocation, …), ((launch or computation, dropped), …), (output, …), single, kept), each part a tuple as
// operators/direct.py writes it
void fill(Entry& entry, PyObject* recording) {
  PyObject *allocations, *launches, *outputs, *kept;
  int single;
  parse(recording, "O!O!O!pO!", &PyTuple_Type, &allocations, &PyTuple_Type, &launches, &PyTuple_Type, &outputs, &single,
        &PyTuple_Type, &kept);
  entry.single = single;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kept); ++i) entry.kept.push_back(own(item(kept, i)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(allocations); ++i) {
    PyObject *shape, *stride, *dtype;
    int made_by_torch;
    parse(item(allocations, i), "O!O!O!p", &PyTuple_Type, &shape, &PyTuple_Type, &stride, &THPDtypeType, &dtype,
          &made_by_torch);
    entry.allocations.push_back(
        {numbers(shape), numbers(stride), reinterpret_cast<THPDtype*>(dtype)->scalar_type, made_by_torch != 0});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(launches); ++i) {
    PyObject *words, *dropped;
    int of_torch;
    parse(item(launches, i), "pO!O!", &of_torch, &PyTuple_Type, &words, &PyTuple_Type, &dropped);
    Launch one{};
    if (of_torch)
      one.of_torch = computation(words);
    else
      fill(one, words);
    for (const int64_t number : numbers(dropped)) one.dropped.push_back(static_cast<int>(number));
    entry.launches.push_back(std::move(one));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
    PyObject *shape, *stride;
    int number, whole;
    long long offset;
    parse(item(outputs, i), "ipO!O!L", &number, &whole, &PyTuple_Type, &shape, &PyTuple_Type, &stride, &offset);
    entry.outputs.push_back({number, whole != 0, numbers(shape), numbers(stride), offset});
  }
}

// learn(args, recording or function, single) -> bool
PyObject* learn(PyObject* self, PyObject* words) {
  HANDLE_TH_ERRORS
  PyObject *args, *recording;
  int single;
  parse(words, "O!Op", &PyTuple_Type, &args, &recording, &single);
  auto& operation = *reinterpret_cast<Call*>(self)->operation;
  Given given;
  if (!given.read(operation, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args)) || given.find(operation))
    Py_RETURN_FALSE;
  auto entry = std::make_shared<Entry>();
  entry->words = given.words;
  for (PyObject* object : given.objects) entry->objects.push_back(own(object));
  if (PyTuple_Check(recording)) {
    fill(*entry, recording);
  } else {
    entry->repeat = own(recording);
    entry->single = single;
  }
  operation.entries.emplace(given.hash, std::move(entry));
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// learn_gradient(args, ((kind, number), …) of what is saved, fixed outputs as bits, zeros, (varying, …), needs,
// attributes)
PyObject* learn_gradient(PyObject* self, PyObject* words) {
  HANDLE_TH_ERRORS
  PyObject *args, *saved, *varying, *needs, *attributes;
  unsigned long long fixed;
  int zeros;
  parse(words, "O!O!KpO!OO", &PyTuple_Type, &args, &PyTuple_Type, &saved, &fixed, &zeros, &PyTuple_Type, &varying,
        &needs, &attributes);
  const auto* call = reinterpret_cast<Call*>(self);
  Given given;
  if (!given.read(*call->operation, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args))) Py_RETURN_FALSE;
  const auto entry = given.find(*call->operation);
  if (!entry) Py_RETURN_FALSE;
  auto recipe = std::make_shared<Recipe>();
  recipe->wanting = given.wanting();
  recipe->pull = call->pull;
  recipe->fixed = fixed;
  recipe->zeros = zeros;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(saved); ++i) {
    int kind, number;
    parse(item(saved, i), "ii", &kind, &number);
    recipe->saved.emplace_back(kind, number);
  }
  for (const int64_t number : numbers(varying)) recipe->varying.push_back(static_cast<int>(number));
  recipe->needs = own(needs);
  recipe->attributes = own(attributes);
  entry->recipes.push_back(std::move(recipe));
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyObject* forget(PyObject* self, PyObject*) {
  reinterpret_cast<Call*>(self)->operation->entries.clear();
  Py_RETURN_NONE;
}

PyTypeObject* call_type = nullptr;

PyObject* new_call(std::shared_ptr<Operation> operation, const char* name, PyObject* pull) {
  PyObject* self = call_type->tp_alloc(call_type, 0);
  if (!self) throw python_error();
  auto* call = reinterpret_cast<Call*>(self);
  call->vectorcall = made_call;
  new (&call->operation) std::shared_ptr<Operation>(std::move(operation));
  new (&call->name) std::string(name);
  new (&call->libraries) std::vector<std::unique_ptr<torch::Library>>();
  call->pull = Py_XNewRef(pull);
  return self;
}

// gradient(name, pull): the same calls, with a gradient
PyObject* gradient(PyObject* self, PyObject* words) {
  HANDLE_TH_ERRORS
  const char* name;
  PyObject* pull;
  parse(words, "sO", &name, &pull);
  return new_call(reinterpret_cast<Call*>(self)->operation, name, pull);
  END_HANDLE_TH_ERRORS
}

// dispatch(name, of autograd): torch's dispatcher finds the same calls as the operator's kernels, while this lives
PyObject* dispatch(PyObject* self, PyObject* words) {
  HANDLE_TH_ERRORS
  const char* name;
  int of_autograd;
  parse(words, "sp", &name, &of_autograd);
  auto* call = reinterpret_cast<Call*>(self);
  if (!of_autograd || !call->operation->written)  // of what is written autograd is told by the way
    call->libraries.push_back(dispatched(name, call->operation, of_autograd));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// call(name, varying as bits, written as bits, state or None)
PyObject* call(PyObject*, PyObject* words) {
  HANDLE_TH_ERRORS
  const char* name;
  unsigned long long varying, written;
  PyObject* state;
  parse(words, "sKKO", &name, &varying, &written, &state);
  auto operation = std::make_shared<Operation>();
  operation->varying = varying;
  operation->written = written;
  if (state != Py_None) operation->state = own(state);
  return new_call(std::move(operation), name, nullptr);
  END_HANDLE_TH_ERRORS
}

void deallocate(PyObject* self) {
  auto* call = reinterpret_cast<Call*>(self);
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(call->pull);
  call->operation.~shared_ptr();
  call->name.~basic_string();
  call->libraries.~vector();
  type->tp_free(self);
  Py_DECREF(type);
}

// configure(keys of plain tensors, transforms, forward_ad's names, entering, leaving, stream, precision, addresses of
// five functions of the driver)
PyObject* configure(PyObject*, PyObject* words) {
  HANDLE_TH_ERRORS
  PyObject *transforms, *forward_ad, *entering, *leaving, *stream, *precision;
  unsigned long long plain, driver[5];
  parse(words, "KOO!OOOO(KKKKK)", &plain, &transforms, &PyDict_Type, &forward_ad, &entering, &leaving, &stream,
        &precision, &driver[0], &driver[1], &driver[2], &driver[3], &driver[4]);
  world.plain = plain;
  world.transforms = Py_NewRef(transforms);
  world.forward_ad = Py_NewRef(forward_ad);
  world.entering = Py_NewRef(entering);
  world.leaving = Py_NewRef(leaving);
  world.stream = Py_NewRef(stream);
  world.precision = Py_NewRef(precision);
  world.launch = reinterpret_cast<LaunchKernel>(driver[0]);
  world.get_context = reinterpret_cast<GetContext>(driver[1]);
  world.retain_context = reinterpret_cast<RetainContext>(driver[2]);
  world.set_context = reinterpret_cast<SetContext>(driver[3]);
  world.replace_address = reinterpret_cast<ReplaceAddress>(driver[4]);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"learn", learn, METH_VARARGS, nullptr},       {"learn_gradient", learn_gradient, METH_VARARGS, nullptr},
    {"gradient", gradient, METH_VARARGS, nullptr}, {"dispatch", dispatch, METH_VARARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},      {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Call, vectorcall), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                       {Py_tp_methods, methods},
                       {Py_tp_members, members},
                       {0, nullptr}};

PyType_Spec spec = {"atlas_host.Call", sizeof(Call), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};

PyMethodDef functions[] = {
    {"call", call, METH_VARARGS, nullptr},
    {"configure", configure, METH_VARARGS, nullptr},
    {"missed", missed, METH_NOARGS, nullptr},
    {"step", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(step)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "atlas_host", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_atlas_host() {
  world.level = PyUnicode_InternFromString("_current_level");
  world.calls = PyUnicode_InternFromString("calls");
  call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return call_type && world.level && world.calls ? PyModule_Create(&module) : nullptr;
}
