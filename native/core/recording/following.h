// Reads text that another thread writes to a pipe, possibly while it holds the GIL.
#pragma once

#include <functional>
#include <string_view>

namespace kinetoscope {

// Calls `take` with the text from the pipe `text` until all its writers have closed it or, once `finished` is
// readable, it is empty. The second condition is for writing ends that a forked child has inherited. Neither
// is closed. An exception of `take` is thrown at the end: until then the pipe is drained, so that the writer
// does not block. Throws std::system_error if reading fails.
void follow(int text, int finished, const std::function<void(std::string_view)>& take);

}  // namespace kinetoscope
