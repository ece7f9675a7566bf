#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace kinetoscope {
namespace {

[[noreturn]] void fail(int error) { throw std::system_error(error, std::generic_category()); }

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number_ < 0) fail(errno);
  }
  ~Descriptor() { close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file(path);
  struct stat status = {};
  if (fstat(file.number(), &status) != 0) fail(errno);
  if (S_ISDIR(status.st_mode)) fail(EISDIR);
  if (!S_ISREG(status.st_mode)) fail(EINVAL);
  if (status.st_size == 0) return;
  size_ = static_cast<std::size_t>(status.st_size);
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number(), 0);
  if (mapped == MAP_FAILED) fail(errno);
  data_ = static_cast<const std::byte*>(mapped);
  guard_ = std::make_unique<FaultGuard>(mapped, size_);
}

MappedFile::~MappedFile() {
  guard_.reset();
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::prefetch(std::size_t bytes) const {
#ifdef MADV_POPULATE_READ
  if (data_ == nullptr) return;
  // A kernel before 5.14 refuses; the pages then come one by one.
  static_cast<void>(madvise(const_cast<std::byte*>(data_), std::min(bytes, size_), MADV_POPULATE_READ));
#else
  static_cast<void>(bytes);
#endif
}

}  // namespace kinetoscope
