#include "helper_thread.h"

#include <signal.h>
#include <time.h>

namespace kinetoscope {
namespace {

constexpr int kFaults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP};

}  // namespace

bool start_helper_thread(void* (*run)(void*), void* argument, const char* name) {
  // Block the program's signals on this thread, but not faults: a blocked fault kills the process without
  // calling any handler, such as the one that handles truncated files.
  sigset_t most;
  sigset_t before;
  sigfillset(&most);
  for (const int fault : kFaults) sigdelset(&most, fault);
  pthread_sigmask(SIG_SETMASK, &most, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  const int failure = pthread_create(&thread, &attributes, run, argument);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure != 0) return false;
  pthread_setname_np(thread, name);
  return true;
}

void init_monotonic(pthread_cond_t& condition) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

}  // namespace kinetoscope
