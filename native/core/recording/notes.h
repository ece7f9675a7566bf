// The notes of a recording: additional data of spans besides their records.
#pragma once

#include <cstdint>

#include "chunks.h"
#include "clock.h"
#include "reader.h"

namespace kinetoscope {

// Reads all notes, after the spans; those about spans that are not there are counted and left out.
void read_notes(Recording& recording, const ChunkList& chunks, const TickClock& clock, uint64_t start_tick);

}  // namespace kinetoscope
