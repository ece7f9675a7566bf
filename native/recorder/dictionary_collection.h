// Collections: free dictionary entries that no record refers to any more, so that a ring that runs for weeks
// needs bounded space and memory for its names.
//
// 1. Find the entries that records refer to, and write them to new chunks, with the same ids.
// 2. Start a new epoch, in which the dictionary writes to these chunks. Every thread clears its cached ids at
// its
//    next callback.
// 3. Once every thread was seen outside of callbacks, no thread holds an id that is not in a record. Write
// the
//    entries that new records refer to, too.
// 4. Free the chunks of the previous epoch. If the entries take more than half of the space for names, let
// the ring
//    overwrite its oldest records.
// If the process is killed in between, every entry is in the file at least once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "id_set.h"

namespace kinetoscope {

class RecordingFile;
class Session;

// Needed ids by type. Not of modules and parameters, which are kept for the whole recording.
struct NeededIds {
  IdSet strings, names, frames, stacks, shapes, sites, threads;
};

// Adds the ids in the records of a file.
void add_ids_in_records(RecordingFile& file, NeededIds& needed);

// [helper thread; other threads outside of callbacks] Runs a collection if one is requested, or the rest of
// one that timed out. Waits if another thread is doing so. `patience_ns` is the time limit of each wait.
// False if it is not complete.
bool collect_dictionary(Session& session, int64_t patience_ns);

// [any thread] Makes collections also wait for the sampler, which does not run in callbacks: `wait` returns
// when its current round has ended.
void wait_for_sampler(void (*wait)());

}  // namespace kinetoscope
