// Keeps the process alive when a file that it has mapped is cut short by somebody else.
#pragma once

#include <cstddef>

namespace kinetoscope {

// Watches one mapping of a file; it must be destroyed before the mapping goes. Touching a page that the file
// no longer has would end the process with SIGBUS. Instead the whole mapping is replaced by private memory
// that reads as zero, and the access is repeated. Every other SIGBUS goes to whoever handled it before.
class FaultGuard {
 public:
  FaultGuard(void* mapping, std::size_t bytes);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  // [any thread] Whether the file was found too short; from then on nothing written here reaches it.
  bool file_lost() const;
  // [any thread] Replaces the mapping now: for whoever has seen by other means that the file was cut short.
  void lose_file();

  // [child of a fork] Forgets all mappings: those of recordings are not inherited.
  static void forget_all();

 private:
  int slot_;
};

}  // namespace kinetoscope
