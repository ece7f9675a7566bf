#include "reader.h"

#include <algorithm>
#include <cstring>

#include "json.h"
#include "json_scan.h"
#include "json_values.h"
#include "limits.h"
#include "unescaped_name.h"

namespace kinetoscope {
namespace {

// The members of an event that are read; the last one is its arguments.
constexpr std::string_view kMemberNames[] = {"ph", "cat", "name",  "pid", "tid", "ts",   "dur",
                                             "id", "id2", "scope", "sf",  "tts", "tdur", "args"};
constexpr std::string_view ChromeEvent::* kFields[] = {
    &ChromeEvent::phase,          &ChromeEvent::category, &ChromeEvent::name,
    &ChromeEvent::process,        &ChromeEvent::thread,   &ChromeEvent::time,
    &ChromeEvent::duration,       &ChromeEvent::id,       &ChromeEvent::id,
    &ChromeEvent::scope,          &ChromeEvent::frame,    &ChromeEvent::thread_time,
    &ChromeEvent::thread_duration};
constexpr std::size_t kMembers = std::size(kMemberNames), kArgs = kMembers - 1, kName = 2;

constexpr int64_t kYear2001Ns = 1'000'000'000'000'000'000;

std::size_t member_named(std::string_view name) {
  return static_cast<std::size_t>(std::find(std::begin(kMemberNames), std::end(kMemberNames), name) -
                                  std::begin(kMemberNames));
}

std::string quoted_beginning(std::string_view text) {
  std::string shown;
  append_json_escaped(text.substr(0, 24), shown);
  return "\"" + shown + "\"";
}

}  // namespace

ChromeReader::ChromeReader(std::vector<std::pair<std::string, ChromeCategory>> categories,
                           std::size_t max_bytes, uint64_t seed)
    : taken_(std::move(categories), max_bytes, seed), largest_value_(kLargestValue) {}

void ChromeReader::feed(std::string_view block) {
  if (state_ == State::Done) {
    // Not skip_space: the block has no padding, so nothing may be read beyond it.
    if (std::any_of(block.begin(), block.end(),
                    [](char c) { return static_cast<unsigned char>(c) > 0x20; })) {
      taken_.losses.text_after_end = 1;
    }
    return;
  }
  const std::size_t left = used_ - at_;
  const std::size_t needed = left + block.size() + kScanPadding;
  if (needed > buffer_.size()) {
    Column<char> bigger(std::max({needed, kFirstBuffer, left > 0 ? buffer_.size() * 2 : std::size_t{0}}));
    if (left > 0) std::memcpy(bigger.data(), here(), left);
    buffer_ = std::move(bigger);
  } else if (left > 0 && at_ > 0) {
    std::memmove(buffer_.data(), here(), left);
  }
  at_ = 0;
  used_ = left;
  if (!block.empty()) std::memcpy(buffer_.data() + used_, block.data(), block.size());
  used_ += block.size();
  std::memset(buffer_.data() + used_, 0, kScanPadding);
  if (used_ < wanted_) return;
  run(false);
}

void ChromeReader::finish() {
  last_ = true;
  if (buffer_.size() == 0) feed("");
  if (state_ != State::Done) run(true);
  if (!seen_events_) {
    if (state_ == State::Start) throw NotATrace("not a trace: the text is empty");
    throw NotATrace("not a trace: a JSON object without a list \"traceEvents\"");
  }
  // A list may end without its bracket, because its writer may be killed at any time.
  const bool whole = state_ == State::Done || (list_ && state_ == State::Events && at_ == used_);
  if (!whole) taken_.losses.truncated = 1;
  if (!held_.empty()) taken_.read_nanoseconds();
  take_held();
  taken_.close();
  buffer_ = Column<char>();
  at_ = used_ = 0;
  state_ = State::Done;
}

void ChromeReader::run(bool last) {
  wanted_ = 0;
  while (state_ != State::Done) {
    Step step = Step::NeedsMore;
    switch (state_) {
      case State::Start:
        step = start();
        break;
      case State::Members:
        step = member();
        break;
      case State::Events:
        step = element();
        break;
      case State::SkipMember:
      case State::SkipEvent:
        step = skip_on();
        break;
      case State::Done:
        break;
    }
    if (step == Step::Went) continue;
    const std::size_t left = used_ - at_;
    if (state_ == State::Events && left > 0) {
      if (last) {
        // The rest may contain events after one whose quotes or brackets are not closed.
        const char* next = may_look_again(left) ? after_bad_event() : nullptr;
        if (next == nullptr) return;
        ++taken_.losses.bad_events;
        go_to(next);
        continue;
      }
      if (left > largest_value_) {
        const char* next = may_look_again(left) ? after_bad_event() : nullptr;
        largest_value_ = std::max(largest_value_ / 2, kLeastLargestValue);
        if (next != nullptr) {
          ++taken_.losses.bad_events;
          go_to(next);
        } else {
          give_up_on(State::SkipEvent);
        }
        continue;
      }
    }
    if (state_ == State::Members && left > largest_value_ && !last) {
      give_up_on(State::SkipMember);
      continue;
    }
    // Scanning again for every block would be quadratic in the length of a value.
    wanted_ = left > kShortValue ? left * 2 : 0;
    return;
  }
  if (at_ < used_ && skip_space(here(), end()) != end()) taken_.losses.text_after_end = 1;
}

ChromeReader::Step ChromeReader::start() {
  const char* p = here();
  if (!begun_) {
    if (used_ - at_ < 3 && !last_) return Step::NeedsMore;
    if (used_ - at_ >= 3 && std::memcmp(p, "\xEF\xBB\xBF", 3) == 0) p += 3;
    begun_ = true;
  }
  p = skip_space(p, end());
  go_to(p);
  if (p == end()) return Step::NeedsMore;
  if (*p == '{') {
    state_ = State::Members;
  } else if (*p == '[') {
    state_ = State::Events;
    list_ = seen_events_ = true;
  } else {
    throw NotATrace("not a trace: the text begins with " +
                    quoted_beginning({p, static_cast<std::size_t>(end() - p)}) +
                    ", but a JSON trace begins with { or [");
  }
  go_to(p + 1);
  return Step::Went;
}

ChromeReader::Step ChromeReader::member() {
  const char* p = skip_space(here(), end());
  while (p < end() && *p == ',') p = skip_space(p + 1, end());
  go_to(p);
  if (p == end()) return Step::NeedsMore;
  if (*p == '}') {
    go_to(p + 1);
    state_ = State::Done;
    return Step::Went;
  }
  bool escaped = false;
  const char* close = *p == '"' ? find_closing_quote(p + 1, end(), escaped) : nullptr;
  if (close == nullptr && *p == '"') return Step::NeedsMore;
  const char* colon = close == nullptr ? p : skip_space(close + 1, end());
  if (colon == end()) return Step::NeedsMore;
  if (*colon != ':') {
    if (!seen_events_) {
      throw NotATrace("not a trace: " + quoted_beginning({p, static_cast<std::size_t>(end() - p)}) +
                      " instead of the name of an object member");
    }
    ++taken_.losses.bad_header;
    state_ = State::Done;
    return Step::Went;
  }
  const std::string_view key(p + 1, static_cast<std::size_t>(close - p - 1));
  const char* begin = skip_space(colon + 1, end());
  if (begin == end()) return Step::NeedsMore;
  if (key == "traceEvents" && *begin == '[') {
    taken_.losses.repeated_lists += seen_events_;
    seen_events_ = true;
    state_ = State::Events;
    go_to(begin + 1);
    return Step::Went;
  }
  std::size_t deepest = 0;
  const char* after = skip_value(begin, end(), deepest);
  if (after == nullptr && *begin != '"' && *begin != '{' && *begin != '[') {
    ++taken_.losses.bad_header;
    go_to(begin + 1);
    return Step::Went;
  }
  // More digits of a number may follow.
  if (after == nullptr || (after == end() && !last_)) return Step::NeedsMore;
  const std::string_view raw(begin, static_cast<std::size_t>(after - begin));
  header_bytes_ += key.size() + raw.size();
  std::string value;
  append_minified(raw, value);
  if (header_bytes_ > kLargestHeader) {
    ++taken_.losses.oversized_values;
  } else if (!is_json(value)) {
    ++taken_.losses.bad_header;
  } else {
    std::string name;
    append_unescaped(key, name);
    header_.emplace_back(std::move(name), std::move(value));
  }
  go_to(after);
  return Step::Went;
}

ChromeReader::Step ChromeReader::element() {
  const char* p = skip_space(here(), end());
  while (p < end() && *p == ',') p = skip_space(p + 1, end());
  go_to(p);
  if (p == end()) return Step::NeedsMore;
  if (*p == ']') {
    go_to(p + 1);
    state_ = list_ ? State::Done : State::Members;
    return Step::Went;
  }
  if (*p != '{') {
    std::size_t deepest = 0;
    const char* after = skip_value(p, end(), deepest);
    if (after == nullptr && (*p == '"' || *p == '[')) return Step::NeedsMore;
    if (after == end() && !last_) return Step::NeedsMore;
    ++taken_.losses.bad_events;
    go_to(after == nullptr ? p + 1 : after);
    return Step::Went;
  }
  const char* after = event_at(p, end());
  if (after != nullptr) {
    ++events_;
    taken_.losses.too_deep += too_deep_ ? 1 : 0;
    taken_.losses.bad_texts += damaged_key_ ? 1 : 0;
    if (!unit_decided_ && !event_.time.empty() && event_.phase != "\"M\"") {
      decide_unit({p, static_cast<std::size_t>(after - p)});
    } else {
      taken_.take(event_, arguments_);
    }
    go_to(after);
    return Step::Went;
  }
  if (failed_at_ >= end()) return Step::NeedsMore;
  const char* next = after_bad_event();
  if (next == nullptr) return Step::NeedsMore;
  ++taken_.losses.bad_events;
  go_to(next);
  return Step::Went;
}

// Times since 1970 that are too large for microseconds are nanoseconds if the first two are: a single one is
// a mistake.
void ChromeReader::decide_unit(std::string_view event) {
  const bool is_large = integer_of(event_.time).value_or(0) >= kYear2001Ns;
  if (is_large && held_.empty()) {
    held_ = event;
    return;
  }
  unit_decided_ = true;
  if (held_.empty()) return taken_.take(event_, arguments_);
  if (is_large) taken_.read_nanoseconds();
  const std::string second(event);
  take_held();
  held_ = second;
  take_held();
}

void ChromeReader::take_held() {
  if (held_.empty()) return;
  held_.append(kScanPadding, '\0');
  const char* const stop = held_.data() + held_.size() - kScanPadding;
  if (event_at(held_.data(), stop) == stop) taken_.take(event_, arguments_);
  held_.clear();
}

const char* ChromeReader::event_at(const char* p, const char* stop) {
  event_ = ChromeEvent();
  too_deep_ = damaged_key_ = false;
  arguments_.clear();
  const auto fail = [this](const char* at) {
    failed_at_ = at;
    return static_cast<const char*>(nullptr);
  };
  std::size_t previous = kMembers;
  ++p;
  for (bool first = true;; first = false) {
    std::size_t member = kMembers;
    if (const char* value = gap_[previous].passed(p, stop)) {
      member = gap_[previous].key();
      p = skip_space(value, stop);
      if (p >= stop) return fail(stop);
    } else {
      const char* const gap = p;
      p = skip_space(p, stop);
      if (p >= stop) return fail(stop);
      if (*p == '}') return p + 1;
      if (!first) {
        if (*p != ',') return fail(p);
        p = skip_space(p + 1, stop);
        if (p >= stop) return fail(stop);
        if (*p == '}') return p + 1;  // an extra comma is accepted
      }
      if (*p != '"') return fail(p);
      bool escaped = false;
      const char* const key = p + 1;
      const char* close = find_closing_quote(key, stop, escaped);
      if (close == nullptr) return fail(stop);
      p = skip_space(close + 1, stop);
      if (p >= stop || *p != ':') return fail(p);
      p = skip_space(p + 1, stop);
      if (p >= stop) return fail(stop);
      member = member_named({key, static_cast<std::size_t>(close - key)});
      if (member < kMembers) {
        gap_[previous].learn(gap, p, member);
      } else {
        damaged_key_ |= has_damage({key, static_cast<std::size_t>(close - key)});
      }
    }
    std::size_t deepest = 0;
    if (member == kArgs && *p == '{') {
      p = arguments_.read(p, stop, deepest);
      if (p == nullptr) return fail(arguments_.failed_at());
      if (deepest > 0) too_deep_ = true;
    } else {
      const char* begin = p;
      p = skip_value(p, stop, deepest);
      if (p == nullptr) return fail(*begin == '"' || *begin == '{' || *begin == '[' ? stop : begin);
      if (member < kArgs) event_.*kFields[member] = {begin, static_cast<std::size_t>(p - begin)};
      if (member == kName && *begin == '"' && p < stop && *p != ',' && *p != '}') {
        p = skip_space(p, stop);
        if (p >= stop) return fail(stop);
        if (*p != ',' && *p != '}') {
          const char* quote = end_of_unescaped_name(p, stop);
          if (quote == nullptr || quote == stop) return fail(quote == stop ? stop : p);
          p = quote + 1;
          event_.name = {begin, static_cast<std::size_t>(p - begin)};
        }
      }
    }
    previous = member < kMembers ? member : kMembers + 1;
  }
}

// Where the next event seems to begin: a bracket followed by one of the keys that writers put first.
const char* ChromeReader::after_bad_event() const {
  const char* p = here() + 1;
  while (p < end()) {
    p = static_cast<const char*>(std::memchr(p, '{', static_cast<std::size_t>(end() - p)));
    if (p == nullptr) break;
    const char* inside = skip_space(p + 1, end());
    for (const std::string_view first : {"\"ph\"", "\"cat\"", "\"name\"", "\"pid\"", "\"ts\""}) {
      if (static_cast<std::size_t>(end() - inside) >= first.size() &&
          std::memcmp(inside, first.data(), first.size()) == 0 && first != "\"name\"") {
        return p;
      }
    }
    // {"name": ...} may also be the arguments of an event that names a thread.
    constexpr std::string_view kName = "\"name\"";
    if (static_cast<std::size_t>(end() - inside) >= kName.size() &&
        std::memcmp(inside, kName.data(), kName.size()) == 0) {
      const char* before = p - 1;
      while (before > here() && is_json_space(*before)) --before;
      if (*before == ',') return p;
    }
    ++p;
  }
  return nullptr;
}

void ChromeReader::give_up_on(State skipping) {
  ++taken_.losses.oversized_values;
  state_ = skipping;
  skip_depth_ = 0;
  skip_in_string_ = skip_escaped_ = false;
}

ChromeReader::Step ChromeReader::skip_on() {
  // Inside a member's value, or an event: skip to the comma or bracket that ends it.
  for (const char* p = here(); p < end(); ++p) {
    if (skip_escaped_) {
      skip_escaped_ = false;
    } else if (skip_in_string_) {
      if (*p == '\\') skip_escaped_ = true;
      if (*p == '"') skip_in_string_ = false;
    } else if (*p == '"') {
      skip_in_string_ = true;
    } else if (*p == '{' || *p == '[') {
      ++skip_depth_;
    } else if ((*p == ',' || *p == '}' || *p == ']') && skip_depth_ == 0) {
      go_to(p);
      state_ = state_ == State::SkipEvent ? State::Events : State::Members;
      return Step::Went;
    } else if (*p == '}' || *p == ']') {
      --skip_depth_;
    }
  }
  go_to(end());
  return Step::NeedsMore;
}

}  // namespace kinetoscope
