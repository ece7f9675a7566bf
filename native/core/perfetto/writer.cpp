#include "writer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "../spans/nesting.h"
#include "fields.h"

namespace kinetoscope {
namespace {

namespace field = perfetto;

constexpr uint32_t kFirstSequence = 1;
constexpr uint32_t kMostArrows = (uint32_t{1} << 31) - 1;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::vector<std::string> strict(std::vector<std::string> texts) {
  for (std::string& text : texts) text = strict_utf8(text);
  return texts;
}

int64_t slice_end(int64_t start_ns, int64_t duration_ns) {
  int64_t end_ns;
  if (__builtin_add_overflow(start_ns, std::max<int64_t>(duration_ns, 0), &end_ns)) return kNever;
  return end_ns;
}

int64_t shifted(int64_t time_ns, int64_t by_ns) {
  int64_t sum;
  return __builtin_add_overflow(time_ns, by_ns, &sum) ? 0 : sum;
}

}  // namespace

PerfettoWriter::PerfettoWriter(PerfettoColumns columns, PerfettoTables tables, int64_t realtime_ns,
                               uint64_t identity, std::size_t block_bytes)
    : columns_(std::move(columns)),
      strings_(strict(std::move(tables.strings))),
      categories_(strict(std::move(tables.categories))),
      stacks_(tables.stacks),
      first_track_(tables.thread_first_track.begin(), tables.thread_first_track.end()),
      tracks_(tables.tracks.size()),
      identity_(identity),
      block_bytes_(std::max<std::size_t>(block_bytes, 1)),
      annotations_(strings_, stacks_),
      facts_of_spans_(annotations_.take(std::move(columns_.span_facts), columns_.spans.start_ns.size())),
      facts_of_moments_(
          annotations_.take({{{}, true, std::move(columns_.moment_facts)}}, columns_.moments.time_ns.size())),
      event_names_(strings_.size() + 1),
      event_categories_(categories_.size() + 1),
      locations_(stacks_.file.size()) {
  columns_.moments.name = strict_utf8(columns_.moments.name);
  columns_.moments.category = strict_utf8(columns_.moments.category);
  check_spans();
  check_moments();
  check_counters();
  take_moments();
  take_arrows(columns_.arrows);
  set_origin();
  draft_.sequence = kFirstSequence;
  write_clocks(realtime_ns > 0 ? shifted(realtime_ns, origin_ns_) : 0, kFirstSequence, header_);
  write_metadata(tables.metadata, kFirstSequence, header_);
  write_tracks(tables.tracks, identity_, kFirstSequence, header_);
}

void PerfettoWriter::check_spans() const {
  const PerfettoSpans& spans = columns_.spans;
  const std::size_t rows = spans.start_ns.size();
  for (const std::size_t size :
       {spans.duration_ns.size(), spans.name.size(), spans.category.size(), spans.thread.size(),
        spans.lane.size(), spans.instant.size(), spans.location.size()}) {
    const bool left_out = size == 0 && (size == spans.instant.size() || size == spans.location.size());
    if (size != rows && !left_out)
      throw BadColumns("PerfettoWriter: the columns of the spans have different lengths");
  }
  const auto refuse = [](std::size_t row, const char* why) {
    throw BadColumns("PerfettoWriter: span " + std::to_string(row) + why);
  };
  for (std::size_t row = 0; row < rows; ++row) {
    if (!has_track(spans.thread[row], spans.lane[row]))
      refuse(row, " is on a thread or lane without a track");
    if (static_cast<std::size_t>(spans.category[row]) >= categories_.size()) refuse(row, " has no category");
    if (row == 0 || spans.thread[row] > spans.thread[row - 1]) continue;
    if (spans.thread[row] < spans.thread[row - 1] || spans.start_ns[row] < spans.start_ns[row - 1])
      refuse(row, " starts before the previous one");
  }
}

void PerfettoWriter::check_moments() const {
  const PerfettoMoments& moments = columns_.moments;
  if (moments.thread.size() != moments.time_ns.size())
    throw BadColumns("PerfettoWriter: the columns of the moments have different lengths");
  if (!std::is_sorted(moments.time_ns.begin(), moments.time_ns.end()))
    throw BadColumns("PerfettoWriter: the moments are not sorted by time");
  for (const int32_t thread : moments.thread) {
    if (!has_track(thread, 0)) throw BadColumns("PerfettoWriter: a moment is on a thread without a track");
  }
}

void PerfettoWriter::check_counters() const {
  for (const PerfettoCounter& counter : columns_.counters) {
    const std::size_t values = std::visit([](const auto& column) { return column.size(); }, counter.values);
    if (values != counter.time_ns.size())
      throw BadColumns("PerfettoWriter: a counter does not have one value per time");
    if (!std::is_sorted(counter.time_ns.begin(), counter.time_ns.end()))
      throw BadColumns("PerfettoWriter: the samples of a counter are not sorted by time");
    if (static_cast<std::size_t>(counter.track) >= tracks_)
      throw BadColumns("PerfettoWriter: a counter has no track");
  }
}

void PerfettoWriter::take_moments() {
  const std::span<const int32_t> thread = columns_.moments.thread;
  first_moment_.assign(first_track_.size() + 1, 0);
  for (const int32_t on : thread) ++first_moment_[static_cast<std::size_t>(on) + 1];
  std::partial_sum(first_moment_.begin(), first_moment_.end(), first_moment_.begin());
  std::vector<std::size_t> next(first_moment_.begin(), first_moment_.end());
  moments_.resize(thread.size());
  for (std::size_t row = 0; row < thread.size(); ++row)
    moments_[next[static_cast<std::size_t>(thread[row])]++] = static_cast<uint32_t>(row);
}

void PerfettoWriter::take_arrows(std::span<const PerfettoArrows> arrows) {
  const std::span<const int64_t> start_ns = columns_.spans.start_ns;
  const std::size_t rows = start_ns.size();
  uint32_t number = 0;
  for (const PerfettoArrows& some : arrows) {
    if (some.source.size() != some.target.size())
      throw BadColumns("PerfettoWriter: the columns of the arrows have different lengths");
    for (std::size_t at = 0; at < some.source.size(); ++at) {
      const auto source = static_cast<std::size_t>(some.source[at]),
                 target = static_cast<std::size_t>(some.target[at]);
      if (source >= rows || target >= rows || source == target) continue;
      if (++number > kMostArrows) throw BadColumns("PerfettoWriter: too many arrows");
      arrows_.push_back({static_cast<uint32_t>(source), number & kMostArrows, false});
      // An end before its start would be rejected: such an arrow is reversed.
      arrows_.push_back(
          {static_cast<uint32_t>(target), number & kMostArrows, start_ns[source] < start_ns[target]});
    }
  }
  std::sort(arrows_.begin(), arrows_.end(), [](const Arrow& left, const Arrow& right) {
    return left.row != right.row ? left.row < right.row : left.number < right.number;
  });
}

void PerfettoWriter::set_origin() {
  for (const int64_t start_ns : columns_.spans.start_ns) origin_ns_ = std::min(origin_ns_, start_ns);
  if (!columns_.moments.time_ns.empty()) origin_ns_ = std::min(origin_ns_, columns_.moments.time_ns.front());
  for (const PerfettoCounter& counter : columns_.counters) {
    if (!counter.time_ns.empty()) origin_ns_ = std::min(origin_ns_, counter.time_ns.front());
  }
}

bool PerfettoWriter::has_track(int32_t thread, int32_t lane) const {
  return static_cast<std::size_t>(thread) < first_track_.size() && lane >= 0 &&
         track_of(thread, lane) < tracks_;
}

std::size_t PerfettoWriter::track_of(int32_t thread, int32_t lane) const {
  return static_cast<std::size_t>(int64_t{first_track_[static_cast<std::size_t>(thread)]} + lane);
}

std::string_view PerfettoWriter::string_of(int32_t id) const {
  return static_cast<std::size_t>(id) < strings_.size()
             ? std::string_view(strings_[static_cast<std::size_t>(id)])
             : std::string_view{};
}

uint64_t PerfettoWriter::clock(int64_t time_ns) const {
  return std::min(static_cast<uint64_t>(time_ns) - static_cast<uint64_t>(origin_ns_),
                  static_cast<uint64_t>(kNever));
}

std::string_view PerfettoWriter::next_block() {
  block_.clear();
  block_.append(header_.view());
  header_.clear();
  if (write_threads()) write_counters();
  return block_.view();
}

bool PerfettoWriter::write_threads() {
  for (; thread_ < first_track_.size(); ++thread_) {
    const bool has_spans =
        row_ < columns_.spans.thread.size() && columns_.spans.thread[row_] == static_cast<int32_t>(thread_);
    const bool has_moments = first_moment_[thread_] < first_moment_[thread_ + 1];
    if (!in_sequence_ && !has_spans && !has_moments) continue;
    if (full()) return false;
    if (!in_sequence_) {
      begin_sequence(track_of(static_cast<int32_t>(thread_), 0));
      moment_ = first_moment_[thread_];
      lane_ends_.clear();
    }
    if (!write_thread(thread_)) return false;
    in_sequence_ = false;
  }
  return true;
}

bool PerfettoWriter::write_thread(std::size_t thread) {
  const PerfettoSpans& spans = columns_.spans;
  for (; row_ < spans.thread.size() && spans.thread[row_] == static_cast<int32_t>(thread); ++row_) {
    if (!catch_up(spans.start_ns[row_]) || full()) return false;
    write_span(row_);
  }
  return catch_up(std::nullopt);
}

bool PerfettoWriter::catch_up(std::optional<int64_t> until_ns) {
  while (true) {
    if (full()) return false;
    const bool in_lane = !open_lanes_.empty() && (open_.empty() || open_lanes_.front().end_ns < open_.back());
    const bool any_open = in_lane || !open_.empty();
    const int64_t end_ns = in_lane ? open_lanes_.front().end_ns : any_open ? open_.back() : kNever;
    const bool any_moment = moment_ < first_moment_[thread_ + 1];
    const int64_t moment_ns = any_moment ? columns_.moments.time_ns[moments_[moment_]] : kNever;
    if (any_open && (!until_ns || end_ns <= *until_ns) && (!any_moment || end_ns <= moment_ns)) {
      write_end(in_lane ? open_lanes_.front() : OpenSpan{end_ns, default_track_});
      if (in_lane) {
        std::pop_heap(open_lanes_.begin(), open_lanes_.end(),
                      [](const OpenSpan& left, const OpenSpan& right) { return left.end_ns > right.end_ns; });
        open_lanes_.pop_back();
      } else {
        open_.pop_back();
      }
    } else if (any_moment && (!until_ns || moment_ns < *until_ns)) {
      write_moment(moments_[moment_++]);
    } else {
      return true;
    }
  }
}

bool PerfettoWriter::write_counters() {
  for (; counter_ < columns_.counters.size(); ++counter_, sample_ = 0) {
    const PerfettoCounter& counter = columns_.counters[counter_];
    if (sample_ == 0) {
      if (full()) return false;
      begin_sequence(static_cast<std::size_t>(counter.track));
    }
    for (; sample_ < counter.time_ns.size(); ++sample_) {
      if (full() && sample_ > 0) return false;
      write_sample(counter, sample_);
    }
  }
  return true;
}

void PerfettoWriter::begin_sequence(std::size_t track) {
  in_sequence_ = true;
  ++draft_.sequence;
  default_track_ = track;
  last_clock_ = 0;
  last_name_ = last_category_ = last_location_ = 0;
  annotations_.begin_sequence();
  write_sequence_start(track_uuid(identity_, track), draft_.sequence, block_);
}

void PerfettoWriter::write_span(std::size_t row) {
  const PerfettoSpans& spans = columns_.spans;
  const std::size_t track = track_of(spans.thread[row], spans.lane[row]);
  const bool instant = !spans.instant.empty() && spans.instant[row] != 0 && spans.duration_ns[row] <= 0;
  const auto category = static_cast<std::size_t>(spans.category[row]);
  const auto name = static_cast<std::size_t>(spans.name[row]);
  name_event(std::min(name, strings_.size()), string_of(spans.name[row]), category, categories_[category],
             instant ? field::event::kInstant : field::event::kSliceBegin);
  place_event(track);
  if (!spans.location.empty()) locate_event(spans.location[row]);
  annotations_.show(facts_of_spans_, row, draft_);
  add_arrows(row);
  write_packet(spans.start_ns[row]);
  if (!instant) open_span(row, track);
}

void PerfettoWriter::open_span(std::size_t row, std::size_t track) {
  const PerfettoSpans& spans = columns_.spans;
  const int64_t start_ns = spans.start_ns[row], end_ns = slice_end(start_ns, spans.duration_ns[row]);
  const auto lane = static_cast<std::size_t>(spans.lane[row]);
  const auto refuse = [&] {
    throw BadColumns("PerfettoWriter: span " + std::to_string(row) +
                     " partly overlaps another one in its lane");
  };
  if (lane == 0) {
    if (!open_.empty() && end_ns > open_.back()) refuse();
    open_.push_back(end_ns);
    return;
  }
  if (lane_ends_.size() <= lane) lane_ends_.resize(lane + 1, std::numeric_limits<int64_t>::min());
  if (lane_ends_[lane] > start_ns) refuse();
  lane_ends_[lane] = end_ns;
  open_lanes_.push_back({end_ns, track});
  std::push_heap(open_lanes_.begin(), open_lanes_.end(),
                 [](const OpenSpan& left, const OpenSpan& right) { return left.end_ns > right.end_ns; });
}

void PerfettoWriter::write_end(const OpenSpan& span) {
  draft_.clear();
  draft_.event.number(field::event::kType, field::event::kSliceEnd);
  place_event(span.track);
  write_packet(span.end_ns);
}

void PerfettoWriter::write_moment(std::size_t row) {
  const PerfettoMoments& moments = columns_.moments;
  name_event(strings_.size(), moments.name, categories_.size(), moments.category, field::event::kInstant);
  annotations_.show(facts_of_moments_, row, draft_);
  write_packet(moments.time_ns[row]);
}

void PerfettoWriter::write_sample(const PerfettoCounter& counter, std::size_t sample) {
  draft_.clear();
  draft_.event.number(field::event::kType, field::event::kCounter);
  if (const auto* integers = std::get_if<std::span<const int64_t>>(&counter.values)) {
    draft_.event.number(field::event::kCounterValue, static_cast<uint64_t>((*integers)[sample]));
  } else {
    draft_.event.real(field::event::kRealCounterValue,
                      std::get<std::span<const double>>(counter.values)[sample]);
  }
  write_packet(counter.time_ns[sample]);
}

void PerfettoWriter::name_event(std::size_t name, std::string_view text, std::size_t category,
                                std::string_view category_text, uint64_t type) {
  draft_.clear();
  const InternedRows::Number named = event_names_.number(name, draft_.sequence, last_name_);
  if (named.fresh) draft_.intern(field::interned::kEventNames, named.number, text);
  const InternedRows::Number filed = event_categories_.number(category, draft_.sequence, last_category_);
  if (filed.fresh) draft_.intern(field::interned::kCategories, filed.number, category_text);
  draft_.event.number(field::event::kType, type);
  draft_.event.number(field::event::kCategory, filed.number);
  draft_.event.number(field::event::kName, named.number);
}

void PerfettoWriter::place_event(std::size_t track) {
  if (track != default_track_) draft_.event.number(field::event::kTrackUuid, track_uuid(identity_, track));
}

void PerfettoWriter::locate_event(int32_t frame) {
  const auto row = static_cast<std::size_t>(frame);
  if (row >= locations_.size()) return;
  const InternedRows::Number location = locations_.number(row, draft_.sequence, last_location_);
  if (location.fresh) {
    packet_.clear();
    packet_.number(field::interned::kNumber, location.number);
    packet_.bytes(field::interned::kLocationFile, string_of(stacks_.file[row]));
    packet_.bytes(field::interned::kLocationFunction, string_of(stacks_.function[row]));
    if (stacks_.line[row] > 0)
      packet_.number(field::interned::kLocationLine, static_cast<uint64_t>(stacks_.line[row]));
    draft_.interned.message(field::interned::kLocations, packet_);
  }
  draft_.event.number(field::event::kLocation, location.number);
}

void PerfettoWriter::add_arrows(std::size_t row) {
  while (arrow_ < arrows_.size() && arrows_[arrow_].row < row) ++arrow_;
  for (; arrow_ < arrows_.size() && arrows_[arrow_].row == row; ++arrow_) {
    const Arrow& arrow = arrows_[arrow_];
    draft_.event.fixed64(arrow.ends ? field::event::kEndingFlow : field::event::kFlow,
                         identity_ + arrow.number);
  }
}

void PerfettoWriter::write_packet(int64_t time_ns) {
  const uint64_t now = clock(time_ns);
  packet_.clear();
  packet_.number(field::packet::kTimestamp, now - last_clock_);
  last_clock_ = now;
  packet_.number(field::packet::kSequenceId, draft_.sequence);
  packet_.number(field::packet::kSequenceFlags, field::packet::kNeedsState);
  if (!draft_.interned.empty()) packet_.message(field::packet::kInternedData, draft_.interned);
  packet_.message(field::packet::kTrackEvent, draft_.event);
  block_.message(field::kTracePacket, packet_);
}

}  // namespace kinetoscope
