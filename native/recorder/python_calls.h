// Every call of a Python or C function, and every call of an nn.Module, as spans with their exact times.
//
// The interpreter's own events drive this (call_hooks.h); here is what a call is: a span record of its
// thread, in scope kScopePython or kScopeModule, written when the function begins and ended when it returns,
// yields or raises. A generator is a call each time it runs. Each kind can be switched on and off while a
// recording goes on: what runs already is opened where it is switched on, and what still runs is cut where it
// is switched off.
//
// Left out, because their cost would be more than their worth: calls inside Kinetoscope itself, and calls of
// C functions that took less than a microsecond and ran nothing that is recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct _object;
using PyObject = _object;

namespace kinetoscope {

class Session;

// [GIL, once] `folder` is where Kinetoscope's own Python files are.
void know_own_code(const char* folder);

// [GIL, once] Calls of C functions that take less than a microsecond are left out.
void know_microsecond(uint64_t ticks);
// [GIL, session current] Records these kinds of calls from now on, kRecordCalls and kRecordModuleSpans, and
// no others; the interpreter has no hooks of ours while there are none. What is running counts from `since`
// on, a tick that is not later than now; 0: from now on. Returns which of them can be recorded, and says in
// `why` what cannot and why.
uint32_t switch_calls(Session& session, uint32_t kinds, uint64_t since, std::string& why);
// [GIL, session current] Calls that run already have stacks and modules from now on, if they had none.
void complete_calls(Session& session);
// [GIL, session no longer current] Takes the hooks back.
void stop_calls();
// [GIL, every thread idle] Ends all calls in progress.
void cut_calls(Session& session, uint64_t tick);
// [GIL] On how many threads another hook has replaced ours since forget_lost_calls(), at most at one time.
size_t lost_call_threads();
void forget_lost_calls();
// [GIL, child of a fork] Takes the hooks back that came along.
void forget_calls();
// [child of a fork] The same for what needs no GIL.
void reset_calls_after_fork();

// What the hooks report. [owner thread, GIL] The innermost frame is that of the function, for C functions
// that of the caller.
namespace calls {

void began();
void ended();
void c_began(PyObject* function);
void c_ended(PyObject* function);
// For hooks that see every call: whether began() and ended() would do anything here.
bool concerns_this_call();

}  // namespace calls
}  // namespace kinetoscope
