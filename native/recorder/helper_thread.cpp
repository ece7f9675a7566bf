#include "helper_thread.h"

#include <pthread.h>
#include <signal.h>

namespace kinetoscope {
namespace {

constexpr int kFaults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP};

}  // namespace

bool start_helper_thread(void* (*run)(void*), void* argument, const char* name) {
  // The job's signals are for the job's threads. A fault belongs to the thread that makes it: blocked, it
  // ends the process without asking any handler, also the one that survives a file cut short by others.
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

}  // namespace kinetoscope
