// Renumbers the ids of recordings whose dictionary was collected: there ids may be arbitrarily large, and the
// same text may have several, while readers need dense tables.
#pragma once

#include "chunks.h"

namespace kinetoscope {

// Renumbers the ids in the dictionary entries and in the records of all chunks of the list, which become
// copies: dense from 1 on, one id for the same content, in the same order, so that parents of stacks still
// come first. An id without an entry becomes one that no table has.
void make_ids_dense(ChunkList& list);

}  // namespace kinetoscope
