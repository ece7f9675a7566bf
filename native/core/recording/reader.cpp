#include "reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "../spans/linking.h"
#include "chunks.h"
#include "notes.h"
#include "rows.h"
#include "sessions.h"

namespace kinetoscope {
namespace {

// What a span refers to, as rows of the tables; -1 where it has none.
struct SpanRows {
  int32_t name, overload, stack, module, shapes, parameter;
};

// Rows by the ids that records carry.
struct RecordTables {
  const RecordingDictionary& dictionary;
  std::vector<int32_t> thread_of_torch_tid;
  int32_t unknown_name = 0;

  static int32_t row(uint32_t id, std::size_t rows) {
    return id - 1u < rows ? static_cast<int32_t>(id - 1u) : -1;
  }

  SpanRows rows_of(const SpanSite& site) const {
    const int32_t name = row(site.name, dictionary.name_string.size());
    const auto place = static_cast<std::size_t>(std::max(name, 0));
    return {.name = name >= 0                 ? dictionary.name_string[place]
                    : site.name == kUnknownId ? unknown_name
                                              : 0,
            .overload = name < 0 ? 0 : dictionary.name_overload[place],
            .stack = row(site.stack, dictionary.stack_parent.size()),
            .module = row(site.module, dictionary.module_class.size()),
            .shapes = row(site.shapes, dictionary.shape_dims.size()),
            .parameter = row(site.parameter, dictionary.parameter_module.size())};
  }
};

// The numbers of users' ranges, see kStepMark.
class RangeNumbers {
 public:
  explicit RangeNumbers(Recording& recording) : recording_(recording) {
    const auto& strings = recording.dictionary.strings;
    const auto mark = std::find(strings.begin(), strings.end(), kStepMark);
    if (mark != strings.end()) mark_ = static_cast<int32_t>(mark - strings.begin());
  }

  // Takes what the record of the user's range in `row`, named `name`, has as its sequence number. Where that
  // is a number of its own, returns true and adds it to `name`, or to the steps of optimizers.
  bool take(std::size_t row, int32_t& name, int64_t number) {
    if (number < 0) return false;
    auto& strings = recording_.dictionary.strings;
    if (name == mark_) {
      const auto [known, added] = names_.try_emplace(number, static_cast<int32_t>(strings.size()));
      if (added) {
        strings.push_back(
            recording_.step_names.emplace_back(std::string(kStepMark) + std::to_string(number)));
      }
      name = known->second;
      return true;
    }
    if (!strings[static_cast<std::size_t>(name)].starts_with(kOptimizerStep)) return false;
    recording_.optimizer_steps.push_back({static_cast<int32_t>(row), number});
    return true;
  }
  // Takes back those of rows from `first_row` on.
  void forget_from(std::size_t first_row) {
    auto& found = recording_.optimizer_steps;
    while (!found.empty() && found.back().span >= static_cast<int32_t>(first_row)) found.pop_back();
  }

 private:
  Recording& recording_;
  int32_t mark_ = -1;
  std::unordered_map<int64_t, int32_t> names_;
};

struct SpanTotals {
  uint64_t last_tick = 0;
  uint64_t unfinished = 0;
  uint64_t damaged = 0;
  uint64_t early = 0;
};

// Converts the spans of one thread, into rows [first_row, ...).
class SpanConverter {
 public:
  SpanConverter(SpanColumns& spans, const RecordTables& tables, RangeNumbers& numbers, const TickClock& clock,
                uint64_t start_tick)
      : spans_(spans),
        tables_(tables),
        numbers_(numbers),
        start_tick_(start_tick),
        starts_(clock, start_tick),
        ends_(clock, start_tick) {}

  void begin_thread(int32_t thread, std::size_t first_row) {
    thread_ = thread;
    row_ = first_row;
    numbers_.forget_from(first_row);
    previous_tick_ = 0;
    ordered_ = true;
    totals_ = {};
    kept_.begin_thread();
  }

  // A span that is another session's.
  void leave_out(const SpanRecord& record) {
    ordered_ &= record.start_tick >= previous_tick_;
    previous_tick_ = record.start_tick;
    totals_.last_tick = std::max({totals_.last_tick, record.start_tick, record.end_tick});
    if (record.scope != kBackwardScope) kept_.leave_out(record);
  }

  std::size_t row() const { return row_; }

  // `rows` are those of the record's site.
  void convert(const SpanRecord& record, const SpanRows& rows) {
    ordered_ &= record.start_tick >= previous_tick_;
    previous_tick_ = record.start_tick;
    totals_.early += record.start_tick < start_tick_;

    const std::size_t row = row_++;
    const int64_t start_ns = starts_.to_ns(record.start_tick);
    int64_t duration_ns = 0;
    uint8_t flags = record.flags & kSpanAsync ? kStateAsync : 0;
    if (record.flags & kSpanCut) flags |= kStateUnfinished;
    if (record.flags & kSpanBegunBefore) flags |= kStateBegunBefore;
    if (record.end_tick == 0) {
      flags |= kStateUnfinished;
      ++totals_.unfinished;
    } else if (record.end_tick < record.start_tick) {
      ++totals_.damaged;
    } else {
      duration_ns = ends_.to_ns(record.end_tick) - start_ns;
    }
    totals_.last_tick = std::max({totals_.last_tick, record.start_tick, record.end_tick});

    spans_.thread[row] = thread_;
    spans_.start_ns[row] = start_ns;
    spans_.duration_ns[row] = duration_ns;
    spans_.name[row] = rows.name;
    spans_.overload[row] = rows.overload;
    spans_.scope[row] = record.scope;
    const bool numbered = record.scope == kUserScope && numbers_.take(row, spans_.name[row], record.sequence);
    spans_.sequence[row] = numbered ? -1 : record.sequence;
    const bool backward = record.scope == kBackwardScope;
    spans_.forward_thread[row] =
        !backward || record.forward_thread == 0 ? -1 : tables_.thread_of_torch_tid[record.forward_thread];
    spans_.kept[row] = backward ? uint16_t{0} : kept_.take(record.forward_thread);
    spans_.stack[row] = rows.stack;
    spans_.module[row] = rows.module;
    spans_.shapes[row] = rows.shapes;
    // That of a call is its place.
    spans_.parameter[row] = numbered || record.scope >= kScopePython ? -1 : rows.parameter;
    spans_.flags[row] = flags;
  }

  bool ordered() const { return ordered_; }
  const SpanTotals& totals() const { return totals_; }

 private:
  SpanColumns& spans_;
  const RecordTables& tables_;
  RangeNumbers& numbers_;
  const uint64_t start_tick_;
  TickReader starts_, ends_;
  int32_t thread_ = -1;
  std::size_t row_ = 0;
  uint64_t previous_tick_ = 0;
  bool ordered_ = true;
  SpanTotals totals_;
  KeptCalls kept_;
};

uint64_t tick_of(const std::byte* record) {
  uint64_t tick;
  std::memcpy(&tick, record, sizeof(tick));
  return tick;
}

// Copies of the records of some chunks, in the order of their first field, which is their tick; equal ticks
// keep their order. Copies, because a ring may overwrite records while they are sorted. `load(chunk, row)`
// gives one.
template <typename Record, typename Load>
std::vector<Record> ordered_records(std::span<const RecordChunk> chunks, Load load) {
  std::vector<Record> records;
  for (const RecordChunk& chunk : chunks) {
    for (std::size_t row = 0; row < chunk.records; ++row) records.push_back(load(chunk, row));
  }
  std::stable_sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
    return tick_of(reinterpret_cast<const std::byte*>(&a)) < tick_of(reinterpret_cast<const std::byte*>(&b));
  });
  return records;
}

SampleRecord load_sample(const RecordChunk& chunk, std::size_t row) {
  SampleRecord record;
  std::memcpy(&record, chunk.payload + row * sizeof(record), sizeof(record));
  return record;
}

std::vector<uint32_t> thread_rows(const RecordingDictionary& dictionary, const ChunkList& chunks) {
  std::vector<uint32_t> indexes;
  for (const auto& [index, thread] : dictionary.threads) indexes.push_back(index);
  for (const RecordChunk& chunk : chunks.spans) indexes.push_back(chunk.thread);
  for (const RecordChunk& chunk : chunks.allocations) indexes.push_back(chunk.thread);
  for (const RecordChunk& chunk : chunks.samples) {
    for (std::size_t row = 0; row < chunk.records; ++row) indexes.push_back(load_sample(chunk, row).thread);
  }
  std::sort(indexes.begin(), indexes.end());
  indexes.erase(std::unique(indexes.begin(), indexes.end()), indexes.end());
  return indexes;
}

// Ends of threads with unfinished spans, which wait until the time of the end is known.
struct OpenThread {
  std::size_t first_row, last_row;
};

// Reads all spans; returns the last tick seen.
uint64_t read_spans(Recording& recording, const ChunkList& chunks, const TickClock& clock,
                    uint64_t start_tick, std::vector<OpenThread>& open_threads) {
  const RecordingDictionary& dictionary = recording.dictionary;
  RecordTables tables{dictionary, std::vector<int32_t>(size_t{1} << 16, -1)};
  if (dictionary.unknown_name) tables.unknown_name = static_cast<int32_t>(dictionary.strings.size() - 1);
  for (const auto& [index, thread] : dictionary.threads) {
    const auto logical = static_cast<uint64_t>(thread.torch_tid);
    if (logical == 0 || logical >= tables.thread_of_torch_tid.size()) continue;
    tables.thread_of_torch_tid[logical] = row_of_thread(recording.thread_index, index);
  }

  std::size_t rows = 0;
  for (const RecordChunk& chunk : chunks.spans) rows += chunk.records;
  recording.spans = SpanColumns(rows);
  RangeNumbers numbers(recording);
  SpanConverter converter(recording.spans, tables, numbers, clock, start_tick);
  const RangesOfOthers others(dictionary, 0);
  // Most spans have one of few sites.
  std::vector<SpanRows> rows_of_sites(dictionary.sites.size());
  std::transform(dictionary.sites.begin(), dictionary.sites.end(), rows_of_sites.begin(),
                 [&](const SpanSite& site) { return tables.rows_of(site); });
  const auto load = [&dictionary](const RecordChunk& chunk, std::size_t row) {
    return load_span(chunk, row, dictionary.sites);
  };
  const auto read = [&](const SpanRecord& record) {
    if (!others.has(record)) return converter.convert(record, tables.rows_of(site_of(record)));
    converter.leave_out(record);
    recording.left_out.push_back(record.start_tick);
  };
  const auto read_compact = [&](const RecordChunk& chunk, std::size_t row) {
    const CompactSpan span = load_compact(chunk.payload + row * sizeof(CompactSpan));
    const std::size_t at = span.site - 1u;
    if (at >= rows_of_sites.size()) return read(load(chunk, row));
    const SpanSite& site = dictionary.sites[at];
    if (site.name == 0 || site.scope() == kUserScope) return read(load(chunk, row));
    converter.convert(span_at(span, site), rows_of_sites[at]);
  };
  uint64_t last_tick = start_tick;
  std::size_t first_row = 0;
  const std::span<const RecordChunk> all(chunks.spans);
  for (std::size_t first = 0, last = 0; first < all.size(); first = last) {
    while (last < all.size() && all[last].thread == all[first].thread) ++last;
    const int32_t thread = row_of_thread(recording.thread_index, all[first].thread);
    const auto own = all.subspan(first, last - first);
    converter.begin_thread(thread, first_row);
    for (const RecordChunk& chunk : own) {
      for (std::size_t row = 0; row < chunk.records; ++row) {
        chunk.version < 7 ? read(load(chunk, row)) : read_compact(chunk, row);
      }
    }
    if (!converter.ordered()) {
      converter.begin_thread(thread, first_row);
      for (const SpanRecord& record : ordered_records<SpanRecord>(own, load)) read(record);
    }
    const SpanTotals& totals = converter.totals();
    last_tick = std::max(last_tick, totals.last_tick);
    recording.losses.damaged_records += totals.damaged;
    recording.losses.early_records += totals.early;
    if (totals.unfinished != 0) open_threads.push_back({first_row, converter.row()});
    first_row = converter.row();
  }
  recording.spans.shrink(first_row);
  std::sort(recording.left_out.begin(), recording.left_out.end());
  return last_tick;
}

// Reads all allocations; returns the last tick seen.
uint64_t read_allocations(Recording& recording, const ChunkList& chunks, const TickClock& clock,
                          uint64_t start_tick) {
  struct Keyed {
    uint64_t tick;
    const std::byte* record;
    int32_t thread;
  };
  std::vector<Keyed> records;
  std::vector<std::size_t> runs{0};  // each thread's records are in order already
  for (const RecordChunk& chunk : chunks.allocations) {
    const int32_t thread = row_of_thread(recording.thread_index, chunk.thread);
    if (!records.empty() && records.back().thread != thread) runs.push_back(records.size());
    for (std::size_t at = 0; at < chunk.records; ++at) {
      const std::byte* record = chunk.payload + at * sizeof(AllocationRecord);
      records.push_back({tick_of(record), record, thread});
    }
  }
  runs.push_back(records.size());
  const auto earlier = [](const Keyed& a, const Keyed& b) { return a.tick < b.tick; };
  const auto at = [&](std::size_t run) { return records.begin() + static_cast<std::ptrdiff_t>(runs[run]); };
  for (std::size_t run = 0; run + 1 < runs.size(); ++run) {
    if (!std::is_sorted(at(run), at(run + 1), earlier)) std::stable_sort(at(run), at(run + 1), earlier);
  }
  while (runs.size() > 2) {
    std::vector<std::size_t> merged;
    for (std::size_t run = 0; run + 1 < runs.size(); run += 2) {
      if (run + 2 < runs.size()) std::inplace_merge(at(run), at(run + 1), at(run + 2), earlier);
      merged.push_back(runs[run]);
    }
    merged.push_back(records.size());
    runs = std::move(merged);
  }

  AllocationColumns& columns = recording.allocations = AllocationColumns(records.size());
  const std::size_t stacks = recording.dictionary.stack_parent.size();
  TickReader ticks(clock, start_tick);
  for (std::size_t row = 0; row < records.size(); ++row) {
    AllocationRecord record;
    std::memcpy(&record, records[row].record, sizeof(record));
    recording.losses.early_records += record.tick < start_tick;
    recording.losses.damaged_records += record.bytes < 0;
    columns.time_ns[row] = ticks.to_ns(record.tick);
    columns.address[row] = record.address;
    columns.bytes[row] = std::max<int64_t>(record.bytes, 0);
    columns.thread[row] = records[row].thread;
    columns.device_type[row] = record.device_type;
    columns.device_index[row] = record.device_index;
    columns.stack[row] = RecordTables::row(record.stack, stacks);
  }
  return records.empty() ? start_tick : std::max(start_tick, records.back().tick);
}

// Reads all samples; returns the last tick seen.
uint64_t read_samples(Recording& recording, const ChunkList& chunks, const TickClock& clock,
                      uint64_t start_tick) {
  const auto records = ordered_records<SampleRecord>(chunks.samples, load_sample);
  SampleColumns& columns = recording.samples = SampleColumns(records.size());
  const RecordingDictionary& dictionary = recording.dictionary;
  TickReader ends(clock, start_tick), begins(clock, start_tick);
  for (std::size_t row = 0; row < records.size(); ++row) {
    const SampleRecord& record = records[row];
    recording.losses.early_records += record.tick < start_tick;
    recording.losses.damaged_records += record.since_tick > record.tick;
    columns.time_ns[row] = ends.to_ns(record.tick);
    columns.period_ns[row] = std::max<int64_t>(columns.time_ns[row] - begins.to_ns(record.since_tick), 0);
    const uint32_t waited = record.waited[0] | record.waited[1] << 8 | record.waited[2] << 16;
    columns.waited_ns[row] = waited < kWaitedFrom ? -1 : int64_t{waited - kWaitedFrom} * 1000;
    recording.losses.unknown_waits += waited == kWaitedUnknown;
    columns.thread[row] = row_of_thread(recording.thread_index, record.thread);
    columns.state[row] = record.state & ((1u << kSampleStateBits) - 1);
    const auto wait = static_cast<uint8_t>(record.state >> kSampleStateBits);
    columns.wait[row] = wait <= static_cast<uint8_t>(SampleWait::Other) ? wait : uint8_t{0};
    columns.stack[row] = RecordTables::row(record.stack, dictionary.stack_parent.size());
    columns.module[row] = RecordTables::row(record.module, dictionary.module_class.size());
  }
  return records.empty() ? start_tick : std::max(start_tick, records.back().tick);
}

}  // namespace

SampleColumns::SampleColumns(std::size_t rows)
    : time_ns(rows),
      period_ns(rows),
      waited_ns(rows),
      thread(rows),
      state(rows),
      wait(rows),
      stack(rows),
      module(rows) {}

SpanColumns::SpanColumns(std::size_t rows)
    : thread(rows),
      start_ns(rows),
      duration_ns(rows),
      name(rows),
      overload(rows),
      scope(rows),
      sequence(rows),
      forward_thread(rows),
      kept(rows),
      stack(rows),
      module(rows),
      shapes(rows),
      parameter(rows),
      flags(rows) {}

void SpanColumns::shrink(std::size_t rows) {
  if (rows == size()) return;
  thread.shrink(rows);
  start_ns.shrink(rows);
  duration_ns.shrink(rows);
  name.shrink(rows);
  overload.shrink(rows);
  scope.shrink(rows);
  sequence.shrink(rows);
  forward_thread.shrink(rows);
  kept.shrink(rows);
  stack.shrink(rows);
  module.shrink(rows);
  shapes.shrink(rows);
  parameter.shrink(rows);
  flags.shrink(rows);
}

AllocationColumns::AllocationColumns(std::size_t rows)
    : time_ns(rows),
      address(rows),
      bytes(rows),
      thread(rows),
      device_type(rows),
      device_index(rows),
      stack(rows) {}

int32_t row_of_thread(const std::vector<uint32_t>& indexes, uint32_t index) {
  return static_cast<int32_t>(std::lower_bound(indexes.begin(), indexes.end(), index) - indexes.begin());
}

std::size_t clip_unfinished(std::span<const int64_t> start_ns, std::span<int64_t> duration_ns,
                            std::span<const uint8_t> flags, int64_t stop_ns) {
  std::vector<int64_t> open_ends;
  std::size_t clipped = 0;
  for (std::size_t row = 0; row < start_ns.size(); ++row) {
    while (!open_ends.empty() && open_ends.back() <= start_ns[row]) open_ends.pop_back();
    if (flags[row] & kStateUnfinished) {
      const int64_t end_ns = open_ends.empty() ? stop_ns : open_ends.back();
      duration_ns[row] = std::max<int64_t>(end_ns - start_ns[row], 0);
      ++clipped;
    } else if (!(flags[row] & kStateAsync)) {
      const int64_t end_ns = start_ns[row] + duration_ns[row];
      if (open_ends.empty() || end_ns <= open_ends.back()) open_ends.push_back(end_ns);
    }
  }
  return clipped;
}

namespace {

uint64_t header_is_damaged(const FileHeader& header) {
  return header.checksum != 0 && header.checksum != header_checksum(header) ? 1 : 0;
}

}  // namespace

Recording parse_recording(std::span<const std::byte> file) {
  const FileHeader header = read_header(file);
  ChunkList chunks = list_chunks(file, header);
  Recording recording;
  recording.stopped = header.state == static_cast<uint32_t>(FileState::Stopped);
  recording.process = header.process;
  recording.losses = {.dropped_spans = header.dropped_spans,
                      .dropped_allocations = header.dropped_allocations,
                      .recycled_spans = header.recycled_spans,
                      .recycled_allocations = header.recycled_allocations,
                      .dropped_notes = header.dropped_notes,
                      .recycled_notes = header.recycled_notes,
                      .truncated_strings = header.truncated_strings,
                      .dropped_dictionary = header.dropped_dictionary,
                      .ring_dropped_spans = header.ring_dropped_spans,
                      .ring_dropped_allocations = header.ring_dropped_allocations,
                      .ring_dropped_notes = header.ring_dropped_notes,
                      .dropped_samples = header.dropped_samples,
                      .ring_dropped_samples = header.ring_dropped_samples,
                      .recycled_samples = header.recycled_samples,
                      .torn_samples = header.torn_samples,
                      .dropped_rows = header.dropped_rows,
                      .ring_dropped_rows = header.ring_dropped_rows,
                      .recycled_rows = header.recycled_rows,
                      .limited_dictionary = header.limited_dictionary,
                      .damaged_header = header_is_damaged(header),
                      .damaged_chunks = chunks.damaged,
                      .damaged_records = chunks.missing_records};

  DictionaryParser dictionary;
  for (const std::span<const std::byte>& payload : chunks.dictionary) dictionary.add_chunk(payload);
  recording.dictionary = dictionary.build(header.dropped_dictionary);
  if (header.limited_dictionary != 0 || header.dropped_dictionary != 0) {
    recording.dictionary.strings.push_back("(name not recorded)");
    recording.dictionary.unknown_name = true;
  }
  recording.losses.damaged_entries = recording.dictionary.damaged_entries;
  recording.thread_index = thread_rows(recording.dictionary, chunks);

  const std::size_t pairs = std::min(header.clock_pairs, kMaxClockPairs);
  const TickClock clock(header.clock, header.start_tick, std::span(header.pairs, pairs));
  recording.start_realtime_ns = clock.start_realtime_ns();
  recording.start_monotonic_ns = clock.start_monotonic_ns();
  recording.clock_checks = clock.checks();
  recording.losses.uncalibrated_clock = clock.calibrated() ? 0 : 1;

  std::vector<OpenThread> open_threads;
  uint64_t last_tick = read_spans(recording, chunks, clock, header.start_tick, open_threads);
  read_notes(recording, chunks, clock, header.start_tick);
  last_tick = std::max(last_tick, read_allocations(recording, chunks, clock, header.start_tick));
  last_tick = std::max(last_tick, read_samples(recording, chunks, clock, header.start_tick));
  last_tick = std::max(last_tick, read_rows(recording, chunks, clock, header.start_tick));
  if (recording.stopped && header.stop_tick > header.start_tick) {
    recording.stop_ns = clock.to_ns(header.stop_tick);
  } else {
    for (std::size_t pair = 0; pair < pairs; ++pair) last_tick = std::max(last_tick, header.pairs[pair].tick);
    recording.stop_ns = clock.to_ns(last_tick);
  }
  for (const OpenThread& open : open_threads) {
    const std::size_t rows = open.last_row - open.first_row;
    SpanColumns& spans = recording.spans;
    recording.losses.unfinished_spans += clip_unfinished(
        {spans.start_ns.data() + open.first_row, rows}, {spans.duration_ns.data() + open.first_row, rows},
        {spans.flags.data() + open.first_row, rows}, recording.stop_ns);
  }
  recording.copies = std::move(chunks.copies);
  return recording;
}

}  // namespace kinetoscope
