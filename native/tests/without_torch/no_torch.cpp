// What the recorder asks of torch, for a recorder without: it records Python and module calls only.
#include <atomic>

#include "recorder/collector_guard.h"
#include "recorder/cpu_allocator.h"
#include "recorder/fast_ranges.h"
#include "recorder/kernel_calls.h"
#include "recorder/operators.h"
#include "recorder/parameters.h"
#include "recorder/storage_ids.h"
#include "recorder/tensor_reader.h"
#include "recorder/torch_threads.h"

namespace kinetoscope {

uint64_t torch_thread_id() {
  static std::atomic<uint64_t> next{0};
  thread_local const uint64_t id = ++next;
  return id;
}

void add_operator_callback(uint32_t) {}
void replace_operator_callback(uint32_t) {}
void remove_operator_callback() {}
void resume_operator_callback(uint32_t) {}
bool has_operator_callback() { return false; }
void own_steps(uint32_t) {}
bool begin_step_mark(const void*, int64_t, uint32_t) { return false; }
void end_span(const void*) {}
bool torch_profiles_this_thread() { return false; }
const void* tensor_behind(PyObject*) { return nullptr; }
c10::StorageImpl* storage_behind(PyObject*) { return nullptr; }
const void* accumulated_parameter() { return nullptr; }
void wrap_cpu_allocator() {}
bool watch_storage(c10::StorageImpl&) { return false; }
PyObject* tensor_reader_class() { return Py_NewRef(Py_None); }
PyObject* fast_range_class(PyObject* theirs) { return theirs; }
void collector_guard::before_collector() {}
void collector_guard::after_collector() {}
void collector_guard::collector_stopped() {}
void storage_ids::forget() {}
void storage_ids::after_fork_in_child() {}
PyObject* observed_kernel(PyObject* kernel, PyObject*) { return Py_NewRef(kernel); }

}  // namespace kinetoscope
