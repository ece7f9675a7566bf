// Ranges that end in another recording of torch's collector than they began in.
//
// torch's collector keeps, for each range of a program, the address of the event that the range's end
// completes. The event is freed when the recording stops. If the range ends while the collector records again
// on that thread, torch writes the time into the freed memory, which may belong to anything by then. That
// takes no more than `with record_function("epoch")` around the steps of a schedule that repeats.
//
// Two callbacks of ours, before and after the collector's own, hide the new recording from the collector
// while such a range ends.
#pragma once

namespace kinetoscope::collector_guard {

// Call right before torch's collector begins to call its callbacks on this thread.
void before_collector();

// Call right after that, on the same thread.
void after_collector();

// Call when the collector has stopped, on the same thread. Ranges that are still open remain guarded.
void collector_stopped();

}  // namespace kinetoscope::collector_guard
