// Reads Chrome's trace event format as Kineto and other tools write it, from text that arrives in blocks.
//
// The format: developers of Chrome describe it as "Trace Event Format"; what Kineto adds was found by reading
// its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../columns/column.h"
#include "events.h"
#include "learned_gap.h"
#include "limits.h"

namespace kinetoscope {

// The text is not a trace; the message says what it looks like.
class NotATrace : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ChromeReader {
 public:
  ChromeReader(std::vector<std::pair<std::string, ChromeCategory>> categories, std::size_t max_bytes,
               uint64_t seed);

  // The next part of the text, which may be cut anywhere.
  void feed(std::string_view block);
  // Called at the end of the text. Values without an end are counted as cut.
  void finish();

  std::size_t events() const { return events_; }
  const std::vector<std::pair<std::string, std::string>>& header() const { return header_; }
  ChromeEvents& taken() { return taken_; }

 private:
  enum class State { Start, Members, Events, SkipMember, SkipEvent, Done };
  enum class Step { Went, NeedsMore };

  void run(bool last);
  Step start();
  Step member();
  Step element();
  Step skip_on();
  const char* event_at(const char* p, const char* stop);
  void decide_unit(std::string_view event);
  void take_held();
  const char* after_bad_event() const;
  bool may_look_again(std::size_t bytes) { return (looked_at_again_ += bytes) <= kMostLookedAtAgain; }
  void give_up_on(State skipping);

  std::string_view rest() const { return {buffer_.data() + at_, used_ - at_}; }
  const char* here() const { return buffer_.data() + at_; }
  const char* end() const { return buffer_.data() + used_; }
  void go_to(const char* p) { at_ = static_cast<std::size_t>(p - buffer_.data()); }

  ChromeEvents taken_;
  Column<char> buffer_;
  std::size_t at_ = 0, used_ = 0;
  std::size_t wanted_ = 0;  // how much of an unfinished value must have arrived before it is scanned again
  std::size_t largest_value_;
  std::size_t looked_at_again_ = 0;
  State state_ = State::Start;
  bool begun_ = false, list_ = false, seen_events_ = false, last_ = false;
  std::size_t events_ = 0, header_bytes_ = 0;
  std::vector<std::pair<std::string, std::string>> header_;
  Arguments arguments_;
  ChromeEvent event_;
  bool too_deep_ = false, damaged_key_ = false;  // of that event
  bool unit_decided_ = false;
  std::string held_;  // the first event, while the unit of its time is not known
  // Predicted from the member before: a known one, none, or another.
  LearnedGap gap_[16];
  const char* failed_at_ = nullptr;
  // While a value that is too large is skipped.
  std::size_t skip_depth_ = 0;
  bool skip_in_string_ = false, skip_escaped_ = false;
};

}  // namespace kinetoscope
