// Takes the text that another thread writes into a pipe, while that thread may be holding Python's lock.
#pragma once

#include <functional>
#include <string_view>

namespace kinetoscope {

// Hands over what comes out of the pipe `text` until its writers are gone or, once `finished` can be read, it
// is empty. The second way out is for a writer's end that a forked child has inherited and keeps open. Both
// are left open. What `take` throws is thrown at the end: until then the pipe is emptied, so that the writer
// never waits for a reader that has failed. Throws std::system_error where the system refuses to read.
void follow(int text, int finished, const std::function<void(std::string_view)>& take);

}  // namespace kinetoscope
