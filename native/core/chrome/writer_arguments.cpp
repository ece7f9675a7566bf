#include <algorithm>
#include <array>
#include <unordered_set>

#include "json.h"
#include "json_values.h"
#include "writer_texts.h"

namespace kinetoscope {
namespace {

// Every key that the writer makes from a column. A source may use the same key for something else, such as
// the name of a stream, for which we write the number.
constexpr std::array<std::string_view, 34> kColumnKeys = {
    "External id",
    "Record function id",
    "Ev Idx",
    "Sequence number",
    "Fwd thread id",
    "Concrete Inputs",
    "Input type",
    "Input Strides",
    "Input Dims",
    "Module",
    "Module class",
    "Module row",
    "Call stack",
    "Unfinished",
    "Begun before",
    "Asynchronous",
    "Python id",
    "Python parent id",
    "Python module id",
    "device",
    "stream",
    "correlation",
    "context",
    "bytes",
    "memory bandwidth (GB/s)",
    "registers per thread",
    "shared memory",
    "blocks per SM",
    "warps per SM",
    "grid",
    "block",
    "est. achieved occupancy %",
    "graph id",
    "graph node id",
};

}  // namespace

void SourceArguments::add(std::string_view json) {
  std::vector<JsonMember> members;
  if (is_json(json) && split_json_object(json, members)) {
    std::unordered_set<std::string> seen;
    std::vector<bool> last(members.size(), true);
    std::vector<std::string> keys(members.size());
    for (std::size_t at = 0; at < members.size(); ++at) append_unescaped(members[at].key, keys[at]);
    for (std::size_t at = members.size(); at-- > 0;) last[at] = seen.insert(keys[at]).second;
    const std::size_t first_part = parts_.size(), first = texts_.writing().size();
    bool any = false;
    for (std::size_t at = 0; at < members.size(); ++at) {
      if (!last[at]) continue;
      std::string& text = texts_.writing();
      // The key in the spelling that append() looks for.
      text += ",\"";
      append_json_escaped(keys[at], text);
      text.append("\":").append(members[at].value);
      const bool may_repeat =
          std::find(kColumnKeys.begin(), kColumnKeys.end(), std::string_view(keys[at])) != kColumnKeys.end();
      any |= may_repeat;
      parts_.push_back({text.size() - first, may_repeat});
    }
    if (!any) parts_.resize(first_part);
  }
  texts_.end();
  ends_.push_back(parts_.size());
}

void SourceArguments::append(int32_t row, std::string_view written, EventText& out) const {
  const std::string_view text = texts_.of(row);
  if (text.empty()) return;
  const auto at = static_cast<std::size_t>(row);
  const std::size_t first = at == 0 ? 0 : ends_[at - 1], last = ends_[at];
  if (first == last) {
    out << text;
    return;
  }
  std::size_t begin = 0;
  for (std::size_t part = first; part < last; ++part) {
    const std::string_view member = text.substr(begin, parts_[part].end - begin);
    begin = parts_[part].end;
    if (parts_[part].may_repeat) {
      // Quotes inside strings are escaped, so that only keys match.
      const std::string_view key = member.substr(1, member.find("\":") + 1);
      if (written.find(key) != std::string_view::npos) continue;
    }
    out << member;
  }
}

}  // namespace kinetoscope
