#include "module_registry.h"

#include <Python.h>

#include <cstring>

#include "live.h"
#include "parameters.h"
#include "python_walk.h"

namespace kinetoscope {
namespace {

// How often the tree of one model is read again for new instances.
constexpr uint32_t kMaxTraversals = 8;

std::atomic<bool> pending_call{false};
std::atomic<ModuleRegistry*> pending_registry{nullptr};

// [GIL, main thread] A pending call, which Python runs between two bytecodes.
int run_pending(void*) {
  pending_call.store(false, std::memory_order_release);
  // stop() clears the pointer while it holds the GIL, so the registry cannot go away under us.
  if (ModuleRegistry* registry = pending_registry.load(std::memory_order_acquire)) registry->resolve({});
  return 0;
}

PyObject* on_instance_gone(PyObject*, PyObject* weak_reference) {
  if (ModuleRegistry* registry = pending_registry.load(std::memory_order_acquire))
    registry->forget(weak_reference);
  Py_RETURN_NONE;
}

PyMethodDef gone_method = {"kinetoscope_module_gone", on_instance_gone, METH_O, nullptr};

PyObject* gone_callback() {
  static PyObject* callback = PyCFunction_New(&gone_method, nullptr);
  return callback;
}

const char* class_name(PyObject* self) {
  const char* name = Py_TYPE(self)->tp_name;
  const char* dot = std::strrchr(name, '.');
  return dot != nullptr ? dot + 1 : name;
}

// One name and object of a module's dictionary; the object is held.
struct Entry {
  std::string name;
  PyObject* object;
};

// Reads `self.__dict__[key]`, if it is a dictionary. Nothing in the loop can run Python code or the
// collector.
std::vector<Entry> read_dictionary(PyObject* self, const char* key) {
  std::vector<Entry> found;
  PyObject* attributes = PyObject_GenericGetDict(self, nullptr);
  if (attributes == nullptr) {
    PyErr_Clear();
    return found;
  }
  PyObject* held = PyDict_GetItemString(attributes, key);
  if (held != nullptr && PyDict_Check(held)) {
    Py_ssize_t at = 0;
    PyObject* name = nullptr;
    PyObject* object = nullptr;
    while (PyDict_Next(held, &at, &name, &object)) {
      if (object == Py_None) continue;
      std::string text;
      append_text(name, text);
      Py_INCREF(object);
      found.push_back({std::move(text), object});
    }
  }
  Py_DECREF(attributes);
  return found;
}

}  // namespace

void start_naming(ModuleRegistry* registry) { pending_registry.store(registry, std::memory_order_release); }

uint32_t ModuleRegistry::intern(PyObject* self, uint32_t caller) {
  bool ask = false;
  uint32_t id = 0;
  {
    std::lock_guard lock(dictionary_.mutex());
    if (const auto known = modules_.find(self); known != modules_.end()) return known->second.id;
    const char* type = class_name(self);
    if (const auto like = unregistered_.find(std::to_string(caller) + ":" + type);
        like != unregistered_.end()) {
      // The caller creates a new instance for every call, without registering it: one row represents all of
      // them.
      return like->second;
    }
    id = dictionary_.new_module(type, caller, reinterpret_cast<uintptr_t>(self));
    modules_[self] = Module{id, caller, nullptr, false, 0};
    by_id_[id] = self;
    unnamed_.push_back(self);
    ask = !pending_call.exchange(true, std::memory_order_acq_rel);
  }
  // The queue of pending calls may be full: then the next new instance asks again, and at last stop().
  if (ask && Py_AddPendingCall(run_pending, nullptr) != 0)
    pending_call.store(false, std::memory_order_release);
  return id;
}

uint32_t ModuleRegistry::intern_parameter(const void* tensor) {
  std::lock_guard lock(dictionary_.mutex());
  const auto [at, fresh] = parameters_.try_emplace(tensor, 0);
  if (fresh) at->second = dictionary_.new_parameter(reinterpret_cast<uintptr_t>(tensor));
  return at->second;
}

void ModuleRegistry::collect_frames(std::unordered_set<PyObject*>& found) {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    for (const void* frame = frames::innermost(thread); frame != nullptr; frame = frames::previous(frame)) {
      if (!frames::is_python(frame) || frames::code(frame) != module_call_code()) continue;
      if (PyObject* self = frames::first_local(frame)) found.insert(self);
    }
  }
}

void ModuleRegistry::watch(PyObject* self) {
  {
    std::lock_guard lock(dictionary_.mutex());
    const auto known = modules_.find(self);
    if (known == modules_.end() || known->second.weak_reference != nullptr) return;
  }
  PyObject* reference = PyWeakref_NewRef(self, gone_callback());
  if (reference == nullptr) {
    PyErr_Clear();
    return;
  }
  std::lock_guard lock(dictionary_.mutex());
  modules_[self].weak_reference = reference;
  by_reference_[reference] = self;
}

void ModuleRegistry::forget(PyObject* weak_reference) {
  {
    std::lock_guard lock(dictionary_.mutex());
    const auto known = by_reference_.find(weak_reference);
    if (known == by_reference_.end()) return;
    PyObject* self = known->second;
    by_reference_.erase(known);
    if (const auto module = modules_.find(self); module != modules_.end()) {
      by_id_.erase(module->second.id);
      modules_.erase(module);
    }
    std::erase(unnamed_, self);
    live.module_epoch.fetch_add(1, std::memory_order_acq_rel);
  }
  Py_DECREF(weak_reference);
}

bool ModuleRegistry::list_living(PyObject* into) {
  // References held while the mutex is not: creating tuples may run the garbage collector, which may call
  // forget().
  std::vector<std::pair<uint32_t, PyObject*>> living;
  {
    std::lock_guard lock(dictionary_.mutex());
    for (const auto& [self, module] : modules_) {
      if (module.weak_reference == nullptr) continue;
      PyObject* held = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
      if (PyWeakref_GetRef(module.weak_reference, &held) <= 0) continue;
#else
      held = PyWeakref_GET_OBJECT(module.weak_reference);
      if (held == Py_None) continue;
      Py_INCREF(held);
#endif
      living.emplace_back(module.id, held);
    }
  }
  bool whole = true;
  for (const auto& [id, held] : living) {
    PyObject* pair = whole ? Py_BuildValue("(IO)", id, held) : nullptr;
    whole = pair != nullptr && PyList_Append(into, pair) == 0;
    Py_XDECREF(pair);
    Py_DECREF(held);
  }
  return whole;
}

void ModuleRegistry::drop_references() {
  pending_registry.store(nullptr, std::memory_order_release);
  std::vector<PyObject*> references;
  {
    std::lock_guard lock(dictionary_.mutex());
    for (const auto& [reference, self] : by_reference_) references.push_back(reference);
    by_reference_.clear();
  }
  for (PyObject* reference : references) Py_DECREF(reference);
}

PyObject* ModuleRegistry::root_of(PyObject* self) {
  std::lock_guard lock(dictionary_.mutex());
  PyObject* root = self;
  // Callers have lower ids than modules that they called, so the walk ends.
  for (auto at = modules_.find(self); at != modules_.end() && at->second.caller != 0;) {
    const auto above = by_id_.find(at->second.caller);
    if (above == by_id_.end()) break;
    root = above->second;
    at = modules_.find(root);
  }
  return root;
}

void ModuleRegistry::name_tree(PyObject* root) {
  struct Found {
    PyObject* module;
    PyObject* parent;
    std::string name;
  };
  struct Parameter {
    const void* tensor;
    PyObject* module;
    std::string name;
  };
  std::vector<Found> tree{{root, nullptr, {}}};
  std::vector<Parameter> parameters;
  std::unordered_set<PyObject*> met{root};
  Py_INCREF(root);
  for (size_t at = 0; at < tree.size(); ++at) {
    PyObject* module = tree[at].module;
    for (auto& [name, object] : read_dictionary(module, "_parameters")) {
      if (const void* tensor = tensor_behind(object)) parameters.push_back({tensor, module, std::move(name)});
      Py_DECREF(object);
    }
    for (auto& [name, object] : read_dictionary(module, "_modules")) {
      if (met.insert(object).second) {
        tree.push_back({object, module, std::move(name)});
      } else {
        Py_DECREF(object);
      }
    }
  }
  {
    std::lock_guard lock(dictionary_.mutex());
    for (const Found& found : tree) {
      Module& module = modules_[found.module];
      if (module.id == 0) {
        module.id =
            dictionary_.new_module(class_name(found.module), 0, reinterpret_cast<uintptr_t>(found.module));
        by_id_[module.id] = found.module;
      }
      // A root that is part of another model keeps its name there.
      if (found.parent == nullptr && module.named) continue;
      dictionary_.name_module(module.id, found.parent == nullptr ? 0 : modules_[found.parent].id, found.name);
      module.named = true;
    }
    ++modules_[root].traversals;
    for (const Parameter& parameter : parameters) {
      const auto [at, fresh] = parameters_.try_emplace(parameter.tensor, 0);
      const auto address = reinterpret_cast<uintptr_t>(parameter.tensor);
      if (fresh) at->second = dictionary_.new_parameter(address);
      dictionary_.place_parameter(at->second, address, modules_[parameter.module].id, parameter.name);
    }
  }
  for (const Found& found : tree) watch(found.module);
  for (const Found& found : tree) Py_DECREF(found.module);
}

size_t ModuleRegistry::resolve(const std::vector<PyObject*>& alive) {
  std::vector<PyObject*> waiting;
  {
    std::lock_guard lock(dictionary_.mutex());
    waiting.swap(unnamed_);
  }
  if (waiting.empty()) return 0;
  std::unordered_set<PyObject*> living(alive.begin(), alive.end());
  collect_frames(living);
  // Hold references from here on: naming allocates, which may run the garbage collector.
  for (PyObject* self : living) Py_INCREF(self);

  std::vector<PyObject*> left;
  for (PyObject* self : waiting) {
    if (!living.contains(self)) {
      left.push_back(self);
      continue;
    }
    PyObject* root = root_of(self);
    if (!living.contains(root)) root = self;
    bool named = false;
    uint32_t traversals = 0;
    {
      std::lock_guard lock(dictionary_.mutex());
      named = modules_[self].named;
      traversals = modules_[root].traversals;
    }
    if (!named && traversals < kMaxTraversals) name_tree(root);
    std::lock_guard lock(dictionary_.mutex());
    if (const Module& module = modules_[self]; !module.named && modules_[root].traversals >= kMaxTraversals) {
      unregistered_[std::to_string(module.caller) + ":" + class_name(self)] = module.id;
    }
  }
  for (PyObject* self : waiting)
    if (living.contains(self)) watch(self);
  for (PyObject* self : living) Py_DECREF(self);

  std::lock_guard lock(dictionary_.mutex());
  unnamed_.insert(unnamed_.end(), left.begin(), left.end());
  return unnamed_.size();
}

}  // namespace kinetoscope
