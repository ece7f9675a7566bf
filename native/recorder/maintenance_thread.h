// The helper thread of the process: faults in pages ahead of the writers, reads clock pairs, collects
// dictionaries, and unmaps ended recordings, so that neither the job nor stop() has to wait for that.
#pragma once

#include <memory>

#include "recording_file.h"

namespace kinetoscope {
class Session;
}

namespace kinetoscope::maintenance_thread {

// Starts the thread unless it exists. False if the system cannot create one; recording works without it.
bool ensure_running();
// [any thread] Adds a file to those that the helper thread serves, with the session whose dictionary it
// collects, if there is one.
void watch(std::shared_ptr<RecordingFile> file, std::shared_ptr<Session> session = nullptr);
// [any thread] Removes a file; the helper thread later writes its checksums, and then drops the file and
// `with`. If `left` is given, not before that returns true, because a thread may still be writing there.
void release(std::shared_ptr<RecordingFile> file, std::shared_ptr<void> with, bool (*left)() = nullptr);
// [any thread] Waits until all released files are dropped, at most for `patience_ns`.
void settle(int64_t patience_ns);
// [any thread, hot] Wakes the helper thread, because chunks were taken.
void wake();
// [forked child] Forgets the parent's thread and files.
void reset_after_fork();

}  // namespace kinetoscope::maintenance_thread
