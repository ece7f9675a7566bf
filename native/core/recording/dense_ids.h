// Recordings whose dictionary was collected have ids that are as large as any number, and several for the
// same text. Everything that reads a recording wants tables without gaps.
#pragma once

#include "chunks.h"

namespace kinetoscope {

// Gives the entries of the dictionary, and the records of all chunks in the list, ids that are dense from 1
// on, the same for the same content, and in the order of the ones before, so that stacks still come after
// those that they go on from. Both become copies. An id that no entry has becomes one that no table has.
void make_ids_dense(ChunkList& list);

}  // namespace kinetoscope
