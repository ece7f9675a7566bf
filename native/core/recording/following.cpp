#include "following.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <vector>

namespace kinetoscope {
namespace {

// A pipe holds 64 KiB by default; ours are set to hold this.
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

void follow(int text, int finished, const std::function<void(std::string_view)>& take) {
  const int flags = fcntl(text, F_GETFL);
  if (flags < 0 || fcntl(text, F_SETFL, flags | O_NONBLOCK) < 0) fail("following a pipe");
  std::vector<char> block(kBlockBytes);
  std::exception_ptr failure;
  bool over = false;
  while (true) {
    const ssize_t got = read(text, block.data(), block.size());
    if (got > 0) {
      if (failure != nullptr) continue;
      try {
        take({block.data(), static_cast<std::size_t>(got)});
      } catch (...) {
        failure = std::current_exception();
      }
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != EAGAIN) fail("reading from a pipe");
    // Nothing is in it now. Before the first writer has opened it this reads as its end, so the end alone
    // says nothing.
    if (over) break;
    pollfd watched[2] = {{text, POLLIN, 0}, {finished, POLLIN, 0}};
    if (poll(watched, 2, -1) < 0 && errno != EINTR) fail("waiting for a pipe");
    over = (watched[1].revents & (POLLIN | POLLHUP)) != 0 ||
           ((watched[0].revents & POLLHUP) != 0 && (watched[0].revents & POLLIN) == 0);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace kinetoscope
