// Reads the rows of named tables, which sources append to a recording while it runs.
#pragma once

#include <cstdint>

#include "chunks.h"
#include "clock.h"
#include "reader.h"

namespace kinetoscope {

// Fills `recording.rows`; returns the last tick seen. What makes no sense is left out and counted.
uint64_t read_rows(Recording& recording, const ChunkList& chunks, const TickClock& clock,
                   uint64_t start_tick);

}  // namespace kinetoscope
