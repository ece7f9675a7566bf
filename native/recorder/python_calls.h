// Every call of a Python or C function, and every call of an nn.Module, as spans with their exact times.
//
// Driven by events of the interpreter (call_hooks.h). A call is a span record of its thread, in scope
// kScopePython or kScopeModule, that begins when the function is called, and ends when it returns, yields or
// raises. Each resumption of a generator is a call. Each kind of calls can be switched on and off during a
// recording: calls that are running then begin or end at that moment.
//
// Not recorded: calls inside Kinetoscope itself, and calls of C functions that took less than a microsecond
// and contain no recorded span.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct _object;
using PyObject = _object;

namespace kinetoscope {

class Session;

// [GIL, once] Sets whose code is, by the longest of these that its file's name begins with: texts that end
// with a zero, each behind the letter of a CodeOwner, and an empty one.
void know_own_code(const char* prefixes);

// [GIL, once] Calls of C functions that take less than a microsecond are left out.
void know_microsecond(uint64_t ticks);
// [GIL, session current] Records exactly these kinds of calls from now on, kRecordCalls and
// kRecordModuleSpans; without any, all hooks are removed. Running calls begin at the tick `since`, which is
// not later than now; 0: now. Returns which of them can be recorded, and in `why` which cannot, with the
// reason.
uint32_t switch_calls(Session& session, uint32_t kinds, uint64_t since, std::string& why);
// [GIL, session current] Adds stacks and modules to running calls that have none.
void complete_calls(Session& session);
// [GIL, session no longer current] Removes the hooks.
void stop_calls();
// [GIL, every thread idle] Ends all open calls.
void cut_calls(Session& session, uint64_t tick);
// [GIL] Number of threads on which another tool has replaced our hook since forget_lost_calls(), at most at
// one time.
size_t lost_call_threads();
void forget_lost_calls();
// [GIL, forked child] Removes the inherited hooks.
void forget_calls();
// [forked child] The same for state that does not need the GIL.
void reset_calls_after_fork();

// Called by the hooks. [owner thread, GIL] The innermost frame is that of the function or, for C functions,
// of the caller.
namespace calls {

void began();
void ended();
void c_began(PyObject* function);
void c_ended(PyObject* function);
// For hooks that get every call: whether began() and ended() would do anything now.
bool concerns_this_call();

}  // namespace calls
}  // namespace kinetoscope
