// The nn.Module instances that were called, and their names in their models.
//
// The frame walk finds addresses of instances, without the GIL. Their names are found later with the GIL, in
// a pending call on the main thread: the tree below each outermost module is read once, through the C API
// only (no Python code runs, so torch.compile does not see it).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dictionary.h"

struct _object;
using PyObject = _object;

namespace kinetoscope {

class ModuleRegistry {
 public:
  explicit ModuleRegistry(Dictionary& dictionary) : dictionary_(dictionary) {}

  // [any thread, its frame holds `self`] The id of an instance; `caller` is the module whose call it runs in.
  uint32_t intern(PyObject* self, uint32_t caller);
  // [any thread] The id of a known live instance, or 0. Does not access the instance.
  uint32_t find(const void* self) {
    std::lock_guard lock(dictionary_.mutex());
    const auto known = modules_.find(static_cast<PyObject*>(const_cast<void*>(self)));
    return known == modules_.end() ? 0 : known->second.id;
  }
  // [any thread] The id of a parameter's tensor.
  uint32_t intern_parameter(const void* tensor);

  // [GIL] Finds the names of new instances that are known to be alive: because a Python frame of any thread
  // refers to them, or because they are in `alive`. Returns how many are left without a name.
  size_t resolve(const std::vector<PyObject*>& alive);
  // [GIL] Appends (id, instance) to a list for each instance that was seen and lives; false with an exception
  // set.
  bool list_living(PyObject* into);
  // [GIL, session ended] Releases the weak references.
  void drop_references();

  // [GIL] Called when the instance of this weak reference is freed; its address may be reused.
  void forget(PyObject* weak_reference);

 private:
  struct Module {
    uint32_t id = 0;
    uint32_t caller = 0;
    PyObject* weak_reference = nullptr;
    bool named = false;
    uint32_t traversals = 0;  // of the tree below it, as a root
  };

  // [GIL] Reads the tree below `root` and names everything in it.
  void name_tree(PyObject* root);
  // [GIL] Follows instances still in their frames.
  static void collect_frames(std::unordered_set<PyObject*>& found);
  // [GIL] Creates a weak reference with a callback for when the instance is freed.
  void watch(PyObject* self);
  // [GIL] The outermost live module that (transitively) called this one.
  PyObject* root_of(PyObject* self);

  Dictionary& dictionary_;
  // All below: guarded by dictionary_.mutex().
  std::unordered_map<PyObject*, Module> modules_;
  std::unordered_map<uint32_t, PyObject*> by_id_;
  std::unordered_map<PyObject*, PyObject*> by_reference_;
  std::unordered_map<const void*, uint32_t> parameters_;
  std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>>
      unregistered_;  // caller and class -> id
  std::vector<PyObject*> unnamed_;
};

// [GIL] Lets the main thread's pending calls reach this registry; drop_references() ends that.
void start_naming(ModuleRegistry* registry);

}  // namespace kinetoscope
