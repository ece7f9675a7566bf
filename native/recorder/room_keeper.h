// The one helper thread of the process: faults pages in ahead of the writers, reads the clock pairs, and
// unmaps recordings that are over, so that neither the job nor stop() waits for any of it.
#pragma once

#include <memory>

#include "recording_file.h"

namespace kinetoscope {
class Session;
}

namespace kinetoscope::room_keeper {

// Starts the thread if this process has none yet. False if the system refuses one (recording works without).
bool ensure_running();
// [any thread] Gives the file to the helper's care, and collections of the dictionary of its session, if
// there is one.
void watch(std::shared_ptr<RecordingFile> file, std::shared_ptr<Session> session = nullptr);
// [any thread] Takes the file out of its care; the helper drops the file and what came with it, in its own
// time, and gives it its checksums before. With `left` not before that has returned true: a thread may still
// be writing there.
void release(std::shared_ptr<RecordingFile> file, std::shared_ptr<void> with, bool (*left)() = nullptr);
// [any thread] Waits until everything that was released is dropped; gives up after `patience_ns`.
void settle(int64_t patience_ns);
// [any thread, hot] Says that chunks were taken.
void wake();
// [child of a fork] Forgets the parent's thread and files.
void reset_after_fork();

}  // namespace kinetoscope::room_keeper
