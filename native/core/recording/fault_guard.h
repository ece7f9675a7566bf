// Keeps the process from crashing if another program truncates a file that it has mapped.
#pragma once

#include <signal.h>

#include <cstddef>

namespace kinetoscope {

// [signal handler] Does with a signal what the handler before ours would have done.
void hand_on(const struct sigaction& before, int number, siginfo_t* info, void* context);

// Guards one mapping of a file; it must be destroyed before the mapping is. Accessing a page beyond the end
// of the file would raise SIGBUS. Instead, the whole mapping is replaced by private memory that reads as
// zero, and the access is repeated. Every other SIGBUS is passed to the previous handler.
class FaultGuard {
 public:
  FaultGuard(void* mapping, std::size_t bytes);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  // [any thread] Whether the file was truncated; from then on nothing that is written to the mapping reaches
  // it.
  bool file_lost() const;
  // [any thread] Replaces the mapping now: for callers that have noticed otherwise that the file was
  // truncated.
  void lose_file();

  // [forked child] Forgets all mappings, because those of recordings are not inherited.
  static void forget_all();

 private:
  int slot_;
};

}  // namespace kinetoscope
