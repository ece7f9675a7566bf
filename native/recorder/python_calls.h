// Every call of a Python or C function, and every call of an nn.Module, as spans with their exact times.
//
// The interpreter's own events drive this (call_hooks.h); here is what a call is: a span record of its
// thread, in scope kScopePython or kScopeModule, written when the function begins and ended when it returns,
// yields or raises. A generator is a call each time it runs. What ran already when the recording began is
// opened at its start; what still runs when it ends is cut there.
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

// [GIL, between sessions] Which of the wanted kinds of calls can be recorded; says in `why` what cannot and
// why.
uint32_t claim_calls(uint32_t what, std::string& why);
// [GIL, before the session is current] From now on threads that join a session open the calls they are in.
void prepare_calls(uint64_t ticks_a_microsecond);
// [GIL, session current] Lets the interpreter's events come.
void start_calls(Session& session);
// [GIL, session no longer current] Takes the hooks back. Returns on how many threads another one had
// replaced ours.
size_t stop_calls();
// [GIL, every thread idle] Ends all calls in progress.
void cut_calls(Session& session, uint64_t tick);
// [GIL, child of a fork] Takes the hooks back that came along.
void forget_calls();

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
