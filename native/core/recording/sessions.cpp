#include "sessions.h"

#include <cstddef>

namespace kinetoscope {
namespace {

// The ids of all names that are this text.
std::vector<uint32_t> names_of(const RecordingDictionary& dictionary, std::string_view text) {
  std::vector<uint32_t> found;
  for (std::size_t row = 0; row < dictionary.name_string.size(); ++row) {
    if (dictionary.strings[static_cast<std::size_t>(dictionary.name_string[row])] == text)
      found.push_back(static_cast<uint32_t>(row + 1));
  }
  return found;
}

}  // namespace

RangesOfOthers::RangesOfOthers(const RecordingDictionary& dictionary, uint32_t session) : session_(session) {
  const std::string own =
      session == 0 ? "" : std::string(kSessionKey).append(std::to_string(session)).append(".");
  bool collects = false, others_collect = false;
  for (const auto& [key, value] : dictionary.info) {
    if (!key.ends_with(kCollectionsKey)) continue;
    (key == own + std::string(kCollectionsKey) ? collects : others_collect) = true;
  }
  steps_ = names_of(dictionary, kStepMark);
  step_marks_ = !steps_.empty();
  if (!collects && others_collect) collections_ = names_of(dictionary, kCollection);
  leaves_collections_ = !collections_.empty();
}

}  // namespace kinetoscope
