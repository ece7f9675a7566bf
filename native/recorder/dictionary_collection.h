// Frees the entries of a dictionary that no record needs any more, so that a ring of weeks keeps the names of
// all that it has in bounded room and memory.
//
// 1. What the records need is found, and written into new chunks, under the same ids.
// 2. The dictionary goes on in these chunks, in a new epoch. Every thread forgets the ids that it remembers
//    when it next begins a callback.
// 3. Once every thread has been seen outside the callbacks, nobody holds an id that is in no record. What the
//    records need that came in between is written, too.
// 4. The chunks of the epoch before are freed. If what is needed takes more than half of the room for names,
//    a ring overwrites its oldest records.
// A process that is killed in between leaves each entry at least once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "id_set.h"

namespace kinetoscope {

class RecordingFile;
class Session;

// Ids by what they name. Modules and parameters are not among them: they are kept as long as the recording.
struct NeededIds {
  IdSet strings, names, frames, stacks, shapes, sites, threads;
};

// Adds what the records of a file need.
void add_ids_in_records(RecordingFile& file, NeededIds& needed);

// [helper thread; any other one outside its callback] Does all of this if the dictionary asks for it, or what
// is left of it after an earlier call that gave up. Returns once it is done, by whomever; gives up after
// `patience_ns` for each thing that it waits for. False if there is something left to do.
bool collect_dictionary(Session& session, int64_t patience_ns);

// [any thread] Has collections also wait for the sampler, which is in no callback: `wait` returns once what
// it does at present is done.
void wait_for_sampler(void (*wait)());

}  // namespace kinetoscope
