#include "helper_thread.h"

#include <pthread.h>
#include <signal.h>

namespace kinetoscope {

bool start_helper_thread(void* (*run)(void*), void* argument, const char* name) {
  // The job's signals are for the job's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
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
