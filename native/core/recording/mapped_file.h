// A file mapped for reading.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "fault_guard.h"

namespace kinetoscope {

// Maps a regular file for its own lifetime. If another process cuts the file short meanwhile, all of it reads
// as zero from then on, and file_lost() says so.
class MappedFile {
 public:
  // Throws std::system_error with the errno of the failed call; EINVAL for anything but a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  bool file_lost() const { return guard_ != nullptr && guard_->file_lost(); }

  // Maps the pages of the first `bytes` at once, which spares a fault for each of them. Not for the whole
  // file: the unused end of a live recording may be large and must not be pulled into memory.
  void prefetch(std::size_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::unique_ptr<FaultGuard> guard_;
};

}  // namespace kinetoscope
