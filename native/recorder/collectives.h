// Facts of collectives, as torch knows them, in JSON.
#pragma once

#include <cstdint>
#include <string_view>

namespace at {
struct RecordFunction;
}

namespace kinetoscope {

class Session;

// Set in the id of a name, in the caches of a thread, if it is the name of a collective.
inline constexpr uint32_t kBetweenRanks = uint32_t{1} << 31;

bool is_between_ranks(std::string_view name);

// The dictionary string with the facts of this call; 0 if there are none. Never throws.
//
// From torch's own description, where a backend gives one (NCCL): {"call", "group", "description", "rank",
// "size", "first_rank", "rank_stride", "in_elements", "out_elements", "type", "in_splits", "out_splits"}.
// Else from the inputs, which are only there where shapes are recorded: {"group", "description", "rank",
// "size", "backend", "reduction", "arguments"}, the arguments being [elements, bytes, type] for a tensor or a
// list of them, numbers, truth values and texts as they are, and null for what is none of these.
uint32_t facts_between_ranks(Session& session, const at::RecordFunction& function);

}  // namespace kinetoscope
